"""Write docs/cells.md and its pictures: the equations of each cell, and the result of `rnnscan.explain` for a step.

    python docs/make_cells_page.py

The tests check that the page is up to date.
"""

import inspect
import re
from collections import Counter
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight.explain import Explanation


DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures" / "cells"
STEPS, BATCH, INPUT_SIZE, UNITS, CHANNELS = 1024, 32, 128, 256, 16

FAMILIES = {
    "Simple and gated cells": [cells.RNN(UNITS), cells.IndRNN(UNITS), cells.GRU(UNITS), cells.MGU(UNITS)],
    "Cells for Newton's method": [cells.ParaGRU(UNITS), cells.ParaLSTM(UNITS)],
    "Long short-term memory": [cells.LSTM(UNITS)],
    "Normalized and multiplicative cells": [
        cells.LayerNormLSTM(UNITS),
        cells.LayerNormGRU(UNITS),
        cells.MILSTM(UNITS),
        cells.LayerNormMILSTM(UNITS),
    ],
    "Convolutional cells": [cells.ConvLSTM(CHANNELS), cells.ConvGRU(CHANNELS)],
    "Cells that are linear in their state": [
        cells.SRU(UNITS),
        cells.QRNN(UNITS),
        cells.MinGRU(UNITS),
        cells.MinLSTM(UNITS),
        cells.RGLRU(INPUT_SIZE),
        cells.LRU(UNITS),
    ],
    "xLSTM": [cells.SLSTM(UNITS), cells.MLSTM(UNITS)],
    "Linear attention and selective state spaces": [
        cells.LinearAttention(UNITS, heads=4),
        cells.RetNet(UNITS, heads=4),
        cells.GLA(UNITS, heads=4),
        cells.DeltaNet(UNITS, heads=4),
        cells.Mamba2(UNITS, heads=8),
        cells.S6(INPUT_SIZE),
    ],
}


@dataclass(frozen=True)
class PublicCode:
    """A row of the table of public code.

    Attributes:
        cell: a cell with the options that the public code needs.
        code: the public code that it equals.
        differs: what differs, besides names and layouts.
        test: the test that compares the two.
    """

    cell: Any
    code: str
    differs: str
    test: str


MAMBA = "[state-spaces/mamba](https://github.com/state-spaces/mamba)"
RECURRENTGEMMA = "[recurrentgemma](https://github.com/google-deepmind/recurrentgemma)"
MINIMAL_LRU = "[minimal-LRU](https://github.com/NicolasZucchet/minimal-LRU)"
XLSTM = "[xlstm](https://github.com/NX-AI/xlstm)"
XLSTM_JAX = "[xlstm-jax](https://github.com/NX-AI/xlstm-jax)"

TORCH = "tests/cells/test_torch.py::test_gradients_are_torchs"
FLAX = "tests/cells/test_flax.py::test_values_and_gradients_are_those_of_flax"
KERAS = "tests/cells/test_keras.py::test_values_and_gradients_are_those_of_keras"
CONVOLUTIONS = "tests/cells/test_convolutional.py"
EQUATIONS = "tests/cells/test_public_code.py"

PUBLIC_CODE = [
    PublicCode(cells.RNN(UNITS), "`torch.nn.RNN`", "two biases there, their sum here", TORCH),
    PublicCode(cells.RNN(UNITS), "`flax.linen.SimpleCell`", "", FLAX),
    PublicCode(cells.RNN(UNITS), "`keras.layers.SimpleRNN`", "", KERAS),
    PublicCode(cells.LSTM(UNITS), "`torch.nn.LSTM`", "two biases there, their sum here", TORCH),
    PublicCode(cells.LSTM(UNITS), "`flax.linen.LSTMCell`, `OptimizedLSTMCell`", "the carry is (c, h) there", FLAX),
    PublicCode(cells.LSTM(UNITS), "`keras.layers.LSTM`", "", KERAS),
    PublicCode(cells.GRU(UNITS), "`torch.nn.GRU`", "two biases of r and z there, their sum here", TORCH),
    PublicCode(cells.GRU(UNITS), "`flax.linen.GRUCell`", "", FLAX),
    PublicCode(
        cells.GRU(UNITS), "`keras.layers.GRU(reset_after=True)`", "two biases of r and z there, their sum here", KERAS
    ),
    PublicCode(cells.GRU(UNITS, reset_after=False), "`keras.layers.GRU(reset_after=False)`", "", KERAS),
    PublicCode(
        cells.MGU(UNITS),
        "`flax.linen.MGUCell`",
        "",
        "tests/cells/test_mgu.py::test_values_and_gradients_are_those_of_flax",
    ),
    PublicCode(
        cells.ConvLSTM(16),
        "`keras.layers.ConvLSTM1D`, `2D`, `3D`",
        "",
        f"{CONVOLUTIONS}::test_values_and_gradients_are_those_of_keras",
    ),
    PublicCode(
        cells.ConvLSTM(16),
        "`flax.linen.ConvLSTMCell`",
        "two biases there, their sum here; the carry is (c, h) there",
        f"{CONVOLUTIONS}::test_values_and_gradients_are_those_of_flax",
    ),
    PublicCode(
        cells.RGLRU(UNITS, first_step="plain"),
        f"`RGLRU` of {RECURRENTGEMMA}",
        "there the gradient of the square root is at most 1,000, and a first step ignores the state it is given",
        f"{EQUATIONS}::test_rglru_is_that_of_recurrentgemma_over_packed_documents",
    ),
    PublicCode(
        cells.LRU(UNITS, skip="vector"),
        f"`LRU` of {MINIMAL_LRU}",
        "",
        f"{EQUATIONS}::test_lru_is_that_of_minimal_lru",
    ),
    PublicCode(
        cells.S6(UNITS, discretization="euler"),
        f"`selective_scan_ref` with `x_proj` and `dt_proj` of `Mamba`, in {MAMBA}",
        "the block's convolution, gate and outer projections are not in the cell",
        f"{EQUATIONS}::test_s6_is_the_selective_scan_of_mamba",
    ),
    PublicCode(
        cells.Mamba2(UNITS),
        f"`Mamba2`, `Mamba2Simple` of {MAMBA}",
        "no `init_states`, `dt_limit`, MLP branch, or `D` for each value",
        f"{EQUATIONS}::test_mamba2_is_that_of_mamba",
    ),
    PublicCode(
        cells.MLSTM(UNITS, projections=False, epsilon=1e-6),
        f"`mLSTMCell` of {XLSTM} and {XLSTM_JAX}",
        "`outnorm` and the rest of `mLSTMLayer` are not in the cell; the parallel form there adds epsilon in other "
        "units than its step. `xlstm_large` is another layer: it caps gates, and q and k are half as wide",
        f"{EQUATIONS}::test_mlstm_is_the_mlstm_layer_of_xlstm",
    ),
    PublicCode(
        cells.SLSTM(UNITS),
        f"`sLSTMCell` of {XLSTM}",
        "it takes x W as its input, so give the cell that, with the identity `(4H, 4H)` as its kernel; in `sLSTMLayer` "
        "`fgate` feeds i, and `igate` f",
        f"{EQUATIONS}::test_slstm_is_that_of_xlstm_for_the_identity_as_its_kernel",
    ),
]

INTRODUCTION = f"""# Cells

rnnscan has {sum(map(len, FAMILIES.values()))} cells, from the simple RNN to selective state spaces. [A function of
yours](quickstart.md#a-cell-of-your-own) with the same arguments is a cell too.
"""

AFTER_OVERVIEW = f"""
The carry is a tuple of these states, and `Memory(recompute=...)` takes the names. Parameters are counted for
D = {INPUT_SIZE} inputs and H = {UNITS} units. ConvLSTM and ConvGRU have {CHANNELS} channels.
RGLRU and S6 have {INPUT_SIZE}.

All cells take `dtype`, `param_dtype` and `carry_dtype`, work under `jit`, `grad` and `vmap`, and are tested with each
memory choice and both engines. `rs.stack`, `rs.residual`, `rs.dropout`, `rs.zoneout`, `rs.windowed` and
`rs.adaptive_computation` make cells from them; `rs.layer`, `rs.bidirectional` and `rs.chain` make nets; `rs.attention`
makes decoders. [Public code](#public-code) says whose weights each cell loads, and with which option.

## Pictures of a step

In the pictures `@` is a matrix product, and rounded boxes are the inputs and outputs of a step. Small text gives the
parameters that an operation reads, the name of its value for `Memory(recompute=...)`, and the bytes of one step's value
if it is kept. Colors are the kinds of work: gray runs once; green is parallel, so it can run for many steps at once;
blue is linear in the state; purple updates the state element by element; orange runs step by step. Where a state feeds
green work, that work runs at once after the loop. Thick arrows are values that are kept for the backward pass.

`python docs/make_cells_page.py` writes this page from the docstrings and from `rnnscan.explain` of one step with names
kept, on a CPU: N = {BATCH} rows, T = {STEPS} steps, and pictures of 8 by 8 for convolutions.
"""

PUBLIC_CODE_INTRODUCTION = """## Public code

With the weights of public code a cell has its values and gradients. Each test compares the cell in float64, with random
weights, with the library itself or its recorded results, or with a slow loop over the equations of the code. Weights of
other names or layouts are mapped in the cell's source note or in the test; [Weights](weights.md) has converters. Sizes
and numbers of heads are free. A cell that is not in the table follows its paper, and is tested against that.
"""


def explanation_of(cell) -> Explanation:
    """The explanation of one step of the cell."""
    spatial = (8, 8) if cell.input_axes else ()
    x = jax.ShapeDtypeStruct((BATCH, *spatial, INPUT_SIZE), jnp.float32)
    xs = jax.ShapeDtypeStruct((STEPS, *x.shape), x.dtype)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), INPUT_SIZE))
    return rs.explain(cell, params, jax.eval_shape(cell.initial_carry, x), xs)


def page() -> str:
    """The page as Markdown."""
    sections = [INTRODUCTION, *overview(), AFTER_OVERVIEW]
    for family, members in FAMILIES.items():
        sections.append(f"## {family}\n")
        sections += [section(cell) for cell in members]
    sections += table_of_public_code()
    return "\n".join(sections)


def overview() -> list[str]:
    """The table of all cells."""
    rows = ["| cell | paper or code | carry | names | parameters |", "| --- | --- | --- | --- | ---: |"]
    for cell in (cell for members in FAMILIES.values() for cell in members):
        name = type(cell).__name__
        source = re.search(r"^Source: ([^,:;]+)", inspect.getdoc(type(cell)), re.MULTILINE)
        params = jax.eval_shape(partial(cell.init, input_size=INPUT_SIZE), jax.random.key(0))
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        states, names = (", ".join(f"`{one}`" for one in some) for some in (cell.carry_names, cell.names))
        rows.append(f"| [{name}](#{name.lower()}) | {source[1]} | {states} | {names} | {count:,} |")
    return rows


def section(cell) -> str:
    """The section of one cell."""
    name = type(cell).__name__
    text = inspect.getdoc(type(cell))
    about = text.split("\nArgs:")[0].strip()
    source = text[text.index("Source:") :].strip() if "Source:" in text else ""
    return "\n".join(
        [
            f"### {name}\n",
            about,
            f"\n![One step of {name}](pictures/cells/{name}.svg)\n",
            *table_of_kinds(explanation_of(cell)),
            "",
            *table_of_the_carry(cell, explanation_of(cell)),
            f"\n{source}\n",
        ]
    )


def table_of_kinds(explanation: Explanation) -> list[str]:
    """Count the operations of each kind in a step."""
    rows = ["| kind | matrix products | other operations |", "| --- | ---: | ---: |"]
    for kind in explanation.kinds:
        found = Counter(
            "product" if equation.operation in {"dot_general", "conv_general_dilated"} else "other"
            for equation in explanation.equations
            if equation.kind == kind
        )
        if found:
            rows.append(f"| {kind} | {found['product']} | {found['other']} |")
    return rows


def table_of_the_carry(cell, explanation: Explanation) -> list[str]:
    """The loop of each part of the carry, and where it is kept."""
    rows = ["| part of the carry | its loop is | kept for the backward pass |", "| --- | --- | --- |"]
    for name, leaf in zip(cell.carry_names, explanation.carry.values(), strict=True):
        rows.append(f"| {name} `{leaf.type}` | {leaf.kind} | {leaf.kept} |")
    return rows


def table_of_public_code() -> list[str]:
    """The section of public code, with one row for each comparison."""
    rows = ["| cell | equals | difference | test |", "| --- | --- | --- | --- |"]
    for row in PUBLIC_CODE:
        rows.append(f"| `{call_of(row.cell)}` | {row.code} | {row.differs or 'nothing'} | `{row.test}` |")
    return [PUBLIC_CODE_INTRODUCTION, *rows, ""]


def call_of(cell) -> str:
    """The cell with the options that differ from their defaults, and without its size."""
    options = [
        f"{field.name}={getattr(cell, field.name)!r}".replace("'", '"')
        for field in fields(cell)
        if field.kw_only and getattr(cell, field.name) != field.default
    ]
    return f"{type(cell).__name__}({', '.join(['H', *options])})"


def main() -> None:
    """Write the page and the pictures."""
    for members in FAMILIES.values():
        for cell in members:
            explanation_of(cell).draw().save(PICTURES / f"{type(cell).__name__}.svg")
    (DOCS / "cells.md").write_text(page())


if __name__ == "__main__":
    main()
