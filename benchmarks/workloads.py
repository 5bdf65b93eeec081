"""The workloads: a cell, its sizes, and its loss."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import rnnscan as rs
from benchmarks import cells
from benchmarks.cells import Cell, no_label


# Runs a workload's cell over time: (cell, params, carry, xs) -> (carry, ys).
Scan = Callable[["CellPair", Any, Any, Any], tuple[Any, Any]]

Family = Literal["lstm", "gru", "layer_norm_lstm", "min_gru", "attention", "long_lstm", "para", "other"]

ENCODER_LENGTH = 200


class Shape(NamedTuple):
    """Time, batch, features and hidden size."""

    time: int
    batch: int
    features: int
    hidden: int


class CellPair(NamedTuple):
    """The same cell twice: for rnnscan, and as a user of `lax.scan` writes it."""

    library: Cell
    textbook: Cell


@dataclass(frozen=True)
class Workload:
    """A training loss: the sum of squares of outputs.

    Attributes:
        title: the title of its table.
        shape: its sizes.
        make_arguments: `make_arguments(key) -> (params, *inputs)`; all get gradients.
        outputs: `outputs(scan, *arguments)`: the values whose squares are summed.
        family: the cell; other libraries run "lstm" and "gru". Newton's method solves "para".
        layers: the number of layers.
        memory: the base of rnnscan's memory choices.
    """

    title: str
    shape: Shape
    make_arguments: Callable[[Array], tuple[Any, ...]]
    outputs: Callable[..., Array]
    family: Family
    layers: int = 1
    memory: rs.Memory = field(default_factory=rs.Memory)

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the loss, the same at every call."""
        return self.make_arguments(jax.random.key(0))

    def loss(self, scan: Scan) -> Callable[..., Array]:
        """The loss as a function of the arguments."""

        def loss(*arguments: Any) -> Array:
            outputs = self.outputs(scan, *arguments)
            return jnp.sum(outputs * outputs)

        return loss


def library_workload(kind: Literal["lstm", "gru"], shape: Shape, *, layers: int = 1) -> Workload:
    """A cell of rnnscan, with the loss on the outputs of all steps."""
    make_cell = {"lstm": rs.cells.LSTM, "gru": rs.cells.GRU}[kind]
    one_layer: Cell = cells.lstm if kind == "lstm" else cells.gru
    cell: Any = make_cell(shape.hidden)
    if layers > 1:
        cell = rs.stack(*[make_cell(shape.hidden)] * layers)
    pair = CellPair(cell, cells.stacked_lstm if layers > 1 else one_layer)

    def make_arguments(key: Array) -> tuple[Any, ...]:
        params_key, xs_key = jax.random.split(key)
        return cell.init(params_key, shape.features), inputs_of(xs_key, shape)

    def outputs(scan: Scan, params: Any, xs: Array) -> Array:
        return scan(pair, params, cell.initial_carry(xs[0]), xs)[1]

    name = kind.upper() + (f", {layers} layers" if layers > 1 else "")
    return Workload(title_of(name, shape), shape, make_arguments, outputs, kind, layers=layers)


def _para(kind: Literal["ParaGRU", "ParaLSTM"], shape: Shape) -> Workload:
    cell: Any = getattr(rs.cells, kind)(shape.hidden)
    pair = CellPair(cell, cells.para_gru if kind == "ParaGRU" else cells.para_lstm)

    def make_arguments(key: Array) -> tuple[Any, ...]:
        params_key, xs_key = jax.random.split(key)
        return cell.init(params_key, shape.features), inputs_of(xs_key, shape)

    def outputs(scan: Scan, params: Any, xs: Array) -> Array:
        return scan(pair, params, cell.initial_carry(xs[0]), xs)[1]

    return Workload(title_of(kind, shape), shape, make_arguments, outputs, "para")


def _layer_norm(shape: Shape) -> Workload:
    pair = CellPair(cells.layer_norm_lstm(rs.name), cells.layer_norm_lstm(no_label))
    units = shape.hidden

    def make_arguments(key: Array) -> tuple[Any, ...]:
        params_key, xs_key = jax.random.split(key)
        scales = {"input_scale": jnp.ones(4 * units), "hidden_scale": jnp.ones(4 * units)}
        state_norm = {"state_scale": jnp.ones(units), "state_bias": jnp.zeros(units)}
        params = rs.cells.LSTM(units).init(params_key, shape.features) | scales | state_norm
        return params, inputs_of(xs_key, shape)

    def outputs(scan: Scan, params: Any, xs: Array) -> Array:
        return scan(pair, params, (_zeros(shape),) * 2, xs)[1]

    return Workload(title_of("LSTM with layer normalization", shape), shape, make_arguments, outputs, "layer_norm_lstm")


def _min_gru(shape: Shape) -> Workload:
    pair = CellPair(cells.min_gru(rs.name), cells.min_gru(no_label))

    def make_arguments(key: Array) -> tuple[Any, ...]:
        kernel_key, xs_key = jax.random.split(key)
        kernel = _kernel(kernel_key, shape.features, 2 * shape.hidden)
        return {"kernel": kernel, "bias": jnp.zeros(2 * shape.hidden)}, inputs_of(xs_key, shape)

    def outputs(scan: Scan, params: Any, xs: Array) -> Array:
        return scan(pair, params, (_zeros(shape),), xs)[1]

    return Workload(title_of("minGRU", shape), shape, make_arguments, outputs, "min_gru")


def _attention(shape: Shape, *, positions: int = ENCODER_LENGTH) -> Workload:
    """A decoder whose keys are projected before the loop, from encoder outputs that get gradients too."""
    pair = CellPair(cells.attention_lstm(rs.name), cells.attention_lstm(no_label))
    units = shape.hidden

    def make_arguments(key: Array) -> tuple[Any, ...]:
        lstm_key, key_key, query_key, score_key, encoder_key, xs_key = jax.random.split(key, 6)
        params = rs.cells.LSTM(units).init(lstm_key, shape.features + units) | {
            "key_kernel": _kernel(key_key, units, units),
            "query_kernel": _kernel(query_key, units, units),
            "score_kernel": _kernel(score_key, units, 1)[:, 0],
        }
        encoder = jax.random.normal(encoder_key, (shape.batch, positions, units))
        return params, inputs_of(xs_key, shape), encoder

    def outputs(scan: Scan, params: Any, xs: Array, encoder: Array) -> Array:
        weights = {name: leaf for name, leaf in params.items() if name != "key_kernel"}
        weights |= {"encoder": encoder, "keys": encoder @ params["key_kernel"]}
        return scan(pair, weights, (_zeros(shape),) * 2, xs)[1]

    title = title_of(f"LSTM decoder with additive attention over {positions} positions", shape)
    return Workload(title, shape, make_arguments, outputs, "attention")


def _long_lstm(shape: Shape) -> Workload:
    """A loss on the last state; rnnscan keeps the carry of every sqrt(T)-th step."""
    cell = rs.cells.LSTM(shape.hidden)
    pair = CellPair(cell, cells.lstm)

    def make_arguments(key: Array) -> tuple[Any, ...]:
        params_key, xs_key = jax.random.split(key)
        return cell.init(params_key, shape.features), inputs_of(xs_key, shape)

    def outputs(scan: Scan, params: Any, xs: Array) -> Array:
        return scan(pair, params, cell.initial_carry(xs[0]), xs)[0][0]

    title = title_of('LSTM, loss on the last state, segment="sqrt"', shape)
    return Workload(title, shape, make_arguments, outputs, "long_lstm", memory=rs.Memory(segment="sqrt"))


def title_of(name: str, shape: Shape) -> str:
    """The title of a workload, with its sizes."""
    return f"{name}: T={shape.time}, N={shape.batch}, D={shape.features}, H={shape.hidden}"


def inputs_of(key: Array, shape: Shape) -> Array:
    """Random inputs."""
    return jax.random.normal(key, (shape.time, shape.batch, shape.features))


def _kernel(key: Array, rows: int, columns: int) -> Array:
    return jax.random.normal(key, (rows, columns)) / rows**0.5


def _zeros(shape: Shape) -> Array:
    return jnp.zeros((shape.batch, shape.hidden))


SMALL, NARROW, LARGE = Shape(128, 32, 128, 256), Shape(512, 16, 64, 128), Shape(256, 64, 256, 512)

# Each makes a workload of a `Shape`, and of further sizes that it has.
CELLS: dict[str, Callable[..., Workload]] = {
    "lstm": partial(library_workload, "lstm"),
    "gru": partial(library_workload, "gru"),
    "lstm-stack": partial(library_workload, "lstm", layers=2),
    "lstm-layer-norm": _layer_norm,
    "min-gru": _min_gru,
    "para-gru": partial(_para, "ParaGRU"),
    "para-lstm": partial(_para, "ParaLSTM"),
    "attention": _attention,
}

WORKLOADS: dict[str, Workload] = {
    "lstm-small": CELLS["lstm"](SMALL),
    "lstm-narrow": CELLS["lstm"](NARROW),
    "lstm-large": CELLS["lstm"](LARGE),
    "gru-small": CELLS["gru"](SMALL),
    "gru-narrow": CELLS["gru"](NARROW),
    "gru-large": CELLS["gru"](LARGE),
    "lstm-stack": CELLS["lstm-stack"](SMALL),
    "lstm-layer-norm": CELLS["lstm-layer-norm"](SMALL),
    "min-gru": CELLS["min-gru"](Shape(4096, 8, 64, 128)),
    "para-gru": CELLS["para-gru"](Shape(4096, 8, 64, 128)),
    "para-lstm": CELLS["para-lstm"](Shape(4096, 8, 64, 128)),
    "attention": CELLS["attention"](Shape(48, 16, 128, 128)),
    "lstm-16k": _long_lstm(Shape(16_384, 4, 16, 64)),
}
