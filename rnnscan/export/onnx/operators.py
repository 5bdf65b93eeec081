"""Conversion of rnnscan's cells to the operators `LSTM`, `GRU` and `RNN` of ONNX."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rnnscan import cells
from rnnscan.export.onnx.activations import activations_of, attributes_of, is_symmetric
from rnnscan.export.onnx.builder import Builder, NoOperatorError, Value
from rnnscan.interop.arrays import Tensor
from rnnscan.interop.nets import CellWeights
from rnnscan.interop.onnx import write_cell


_KINDS = {cells.LSTM: "LSTM", cells.GRU: "GRU", cells.RNN: "RNN"}
# The first opset whose recurrent operators have bfloat16.
_BFLOAT16 = 22


class Run(NamedTuple):
    """One direction of a recurrence.

    Attributes:
        cell: an LSTM, GRU or RNN.
        params: its parameters.
        carry: the initial carry: a tuple of values `(N, H)`. None: zeros.
        reverse: whether it runs from the last step to the first.
    """

    cell: Any
    params: Any
    carry: tuple[Value, ...] | None
    reverse: bool


class Lengths(NamedTuple):
    """The lengths of the rows, as the operators take them.

    Attributes:
        steps: int32 `(N,)`, between 0 and T.
        any_valid: booleans `(N, 1)`: whether the length is not 0.
        valid: booleans `(T, N, 1)`: whether the step is valid.
    """

    steps: str
    any_valid: str
    valid: str


def check_cell(cell: Any) -> None:
    """Check that ONNX has an operator for a cell.

    Raises:
        NoOperatorError: if it has none.
    """
    if type(cell) not in _KINDS:
        raise NoOperatorError(f"ONNX has operators for LSTM, GRU and RNN, and none for {cell!r}")
    if getattr(cell, "proj_size", None) is not None:
        raise NoOperatorError(f"ONNX's LSTM has no projection, the proj_size of {cell!r}")
    if getattr(cell, "cell_clip", None) is not None:
        raise NoOperatorError(
            f"ONNX's `clip` limits the inputs of activations, and the cell_clip of {cell!r} the cell state"
        )
    if getattr(cell, "coupled_gates", False) and not is_symmetric(cell.gate_activation):
        raise NoOperatorError(
            f"ONNX has no form for coupled gates with gate_activation={cell.gate_activation!r}, of {cell!r}; "
            "with a sigmoid it has one"
        )
    activations_of(cell)


def fit_one_operator(first: Run, second: Run) -> bool:
    """Whether one operator holds both directions."""
    forms = [
        (
            type(run.cell),
            run.cell.hidden_size,
            activations_of(run.cell),
            getattr(run.cell, "reset_after", None),
            sorted(run.params),
            run.carry is None,
            run.cell.dtype,
            run.cell.carry_dtype,
        )
        for run in (first, second)
    ]
    return forms[0] == forms[1]


def add_operator(
    builder: Builder, runs: list[Run], xs: Value, lengths: Lengths | None, place: str
) -> tuple[list[tuple[Value, ...]], Value]:
    """Add the operator of one cell, or of two that run in both directions.

    Returns:
        The last carry of each direction, values `(N, H)`, and the outputs `(T, directions, N, H)`.

    Raises:
        NoOperatorError: if it computes in several dtypes.
    """
    cell = runs[0].cell
    dtype = _dtype_of(runs, xs)
    _check_dtype(cell, dtype, builder.opset)
    xs = builder.cast(xs, dtype)
    weights = [_tensors(run, dtype) for run in runs]
    stacked = {name: np.stack([tensors[name] for tensors in weights]) for name in weights[0]}
    names = {name: builder.weight(array, f"{place}/{name}") for name, array in stacked.items()}
    states = cell.carry_names
    initial = [_directions(builder, runs, number) for number in range(len(states))]
    attributes = attributes_of([activation for run in runs for activation in activations_of(run.cell)])
    if isinstance(cell, cells.GRU):
        attributes["linear_before_reset"] = int(cell.reset_after)
    if isinstance(cell, cells.LSTM) and "P" in names:
        initial.append(names["P"])
    ys, *last = builder.nodes(
        _KINDS[type(cell)],
        *(xs.name, names["W"], names["R"], names.get("B", "")),
        lengths.steps if lengths is not None else "",
        *initial,
        outputs=("ys", *states),
        place=place,
        hidden_size=cell.hidden_size,
        direction=_direction(runs),
        **attributes,
    )
    carries = [
        tuple(_last(builder, name, number, run, state, lengths, dtype) for state, name in enumerate(last))
        for number, run in enumerate(runs)
    ]
    return carries, Value(ys, dtype)


def _direction(runs: list[Run]) -> str:
    if len(runs) == 2:
        return "bidirectional"
    return "reverse" if runs[0].reverse else "forward"


def _dtype_of(runs: list[Run], xs: Value) -> Any:
    """The one dtype of inputs, weights and states that an operator has."""
    dtypes = set()
    for cell, params, carry, _ in runs:
        computed = jnp.result_type(xs.dtype, *params.values()) if cell.dtype is None else cell.dtype
        if carry is not None:
            of_carry = {value.dtype for value in carry}
        elif cell.carry_dtype is not None:
            of_carry = {np.dtype(cell.carry_dtype)}
        else:
            of_carry = {xs.dtype if jnp.issubdtype(xs.dtype, jnp.floating) else np.dtype(cell.param_dtype)}
        dtypes |= {np.dtype(computed), *of_carry}
    if len(dtypes) > 1:
        raise NoOperatorError(
            f"ONNX computes in the dtype of the carry, and {runs[0].cell!r} with inputs of {xs.dtype} has "
            f"{' and '.join(sorted(map(str, dtypes)))}; set dtype and carry_dtype to one of them"
        )
    return dtypes.pop()


def _check_dtype(cell: Any, dtype: Any, opset: int) -> None:
    """Reject dtypes that the operators do not have in this opset."""
    if dtype == jnp.bfloat16 and opset < _BFLOAT16:
        raise NoOperatorError(f"ONNX's operators have bfloat16 from opset={_BFLOAT16} on, and {cell!r} computes in it")
    if dtype not in (np.float16, np.float32, np.float64, jnp.bfloat16):
        raise NoOperatorError(f"ONNX's operators do not have the dtype {dtype} of {cell!r}")


def _tensors(run: Run, dtype: Any) -> dict[str, Tensor]:
    """The tensors of one direction: W, R, and B and P if the cell has biases and peepholes."""
    cell, params = run.cell, {name: np.asarray(leaf) for name, leaf in run.params.items()}
    if getattr(cell, "coupled_gates", False):
        # i = 1 - f is a gate with the weights of f, negated.
        units = cell.hidden_size
        params = {name: np.concatenate([-leaf[..., :units], leaf], axis=-1) for name, leaf in params.items()}
        cell = replace(cell, coupled_gates=False)
    params = {name: leaf.astype(dtype) for name, leaf in params.items()}
    return write_cell(CellWeights(_KINDS[type(cell)], cell, params))


def _directions(builder: Builder, runs: list[Run], state: int) -> str:
    """A state of the initial carries, `(directions, N, H)`, or an empty name for zeros."""
    if runs[0].carry is None:
        return ""
    first = builder.weight(np.zeros(1, np.int64), "axis_0")
    rows = [builder.node("Unsqueeze", run.carry[state].name, first) for run in runs if run.carry is not None]
    return rows[0] if len(rows) == 1 else builder.node("Concat", *rows, axis=0)


def _last(builder: Builder, name: str, number: int, run: Run, state: int, lengths: Lengths | None, dtype: Any) -> Value:
    """A state of one direction's last carry.

    onnxruntime returns zeros for a row of length 0, and rnnscan the initial carry.
    """
    last = builder.node("Gather", name, builder.weight(np.asarray(number), f"direction_{number}"), axis=0)
    if lengths is not None and run.carry is not None:
        last = builder.node("Where", lengths.any_valid, last, run.carry[state].name)
    return Value(last, dtype)
