"""Write docs/cells.md and its pictures: the equations of each cell, and the result of `rnnscan.explain` for a step.

    python docs/make_cells_page.py

The tests check that the page is up to date.
"""

import inspect
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight.explain import Explanation


DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures" / "cells"
STEPS, BATCH, INPUT_SIZE, UNITS = 1024, 32, 128, 256

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
    "Convolutional cells": [cells.ConvLSTM(16), cells.ConvGRU(16)],
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

INTRODUCTION = f"""# Cells

Written by `python docs/make_cells_page.py`, from the docstrings and from `rnnscan.explain` of one step with names kept,
on a CPU: N = {BATCH} rows, D = {INPUT_SIZE} inputs, H = {UNITS} units (16 channels of an 8 by 8 picture for
convolutions), T = 1024 steps.

In the pictures `@` is a matrix product, and white boxes are the inputs and outputs of a step. Small text gives the
parameters that an operation reads, the name of its value for `Memory(recompute=...)`, and the bytes of one step's value
if it is kept. Colours are the kinds of work: grey runs once; green is parallel, so it can run for many steps at once;
blue is linear in the state; purple updates the state element by element; orange runs step by step. Where a state feeds
green work, that work runs at once after the loop. Thick arrows are values that are kept for the backward pass.

All cells take `dtype`, `param_dtype` and `carry_dtype`, work under `jit`, `grad` and `vmap`, and are tested with each
memory choice and both engines. `rs.stack`, `rs.residual`, `rs.dropout`, `rs.zoneout`, `rs.windowed` and
`rs.adaptive_computation` make cells from them; `rs.layer`, `rs.bidirectional` and `rs.chain` make nets; `rs.attention`
makes decoders.
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
    sections = [INTRODUCTION]
    for family, members in FAMILIES.items():
        sections.append(f"## {family}\n")
        sections += [section(cell) for cell in members]
    return "\n".join(sections)


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


def main() -> None:
    """Write the page and the pictures."""
    for members in FAMILIES.values():
        for cell in members:
            explanation_of(cell).draw().save(PICTURES / f"{type(cell).__name__}.svg")
    (DOCS / "cells.md").write_text(page())


if __name__ == "__main__":
    main()
