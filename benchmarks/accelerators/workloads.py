"""The workloads of `make bench`, and longer, wider and narrower ones."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import rnnscan as rs
from benchmarks.accelerators.associative import associative_lru, associative_rg_lru
from benchmarks.rows import rnnscan_scan, same_function_scans
from benchmarks.workloads import (
    LARGE,
    SMALL,
    WORKLOADS,
    CellPair,
    Scan,
    Shape,
    Workload,
    inputs_of,
    library_workload,
    title_of,
)


LONG = Shape(4096, 8, 128, 128)


def _of_cell(name: str, cell: Any, shape: Shape) -> Workload:
    """A cell of the library, which has no textbook version here."""

    def make_arguments(key: Array) -> tuple[Any, ...]:
        params_key, xs_key = jax.random.split(key)
        return cell.init(params_key, shape.features), inputs_of(xs_key, shape)

    def outputs(scan: Scan, params: Any, xs: Array) -> Array:
        return scan(CellPair(cell, cell), params, cell.initial_carry(xs[0]), xs)[1]

    return Workload(title_of(name, shape), shape, make_arguments, outputs, "other")


def _narrowed(workload: Workload) -> Workload:
    """Parameters, inputs and carry in bfloat16."""

    def make_arguments(key: Array) -> tuple[Any, ...]:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), workload.make_arguments(key))

    return replace(workload, title=f"{workload.title}, bfloat16", make_arguments=make_arguments)


# Parameters, inputs and carry are float32.
_MIXED: dict[str, Any] = {"dtype": jnp.bfloat16, "carry_dtype": jnp.float32}


def _sized(shape: Shape, **sizes: int) -> Shape:
    return shape._replace(**sizes)


ALL: dict[str, Workload] = {
    **WORKLOADS,
    "slstm": _of_cell("sLSTM", rs.cells.SLSTM(256), SMALL),
    "lru": _of_cell("LRU", rs.cells.LRU(128), LONG),
    "rg-lru": _of_cell("RG-LRU", rs.cells.RGLRU(128), LONG),
    "mlstm": _of_cell("mLSTM, 4 heads", rs.cells.MLSTM(256, heads=4), Shape(1024, 4, 256, 256)),
    "lstm-4k": library_workload("lstm", _sized(SMALL, time=4096)),
    "gru-4k": library_workload("gru", _sized(SMALL, time=4096)),
    "lstm-1024": library_workload("lstm", _sized(LARGE, features=1024, hidden=1024)),
    "gru-1024": library_workload("gru", _sized(LARGE, features=1024, hidden=1024)),
    "lstm-2048": library_workload("lstm", _sized(LARGE, features=2048, hidden=2048)),
    "gru-2048": library_workload("gru", _sized(LARGE, features=2048, hidden=2048)),
    "lstm-bf16": _narrowed(library_workload("lstm", LARGE)),
    "gru-bf16": _narrowed(library_workload("gru", LARGE)),
    "min-gru-bf16": _narrowed(WORKLOADS["min-gru"]),
    "lstm-mixed": _of_cell("LSTM, bfloat16 products, float32 carry", rs.cells.LSTM(512, **_MIXED), LARGE),
    "gru-mixed": _of_cell("GRU, bfloat16 products, float32 carry", rs.cells.GRU(512, **_MIXED), LARGE),
}

# The cells of the workloads that have a row with all names in host memory.
OFFLOADED: dict[str, Any] = {"lstm-large": rs.cells.LSTM(LARGE.hidden), "gru-large": rs.cells.GRU(LARGE.hidden)}

_ASSOCIATIVE: dict[str, Scan] = {"lru": associative_lru, "rg-lru": associative_rg_lru}

# The scans of cells that have no textbook version.
_OF_CELL: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": lambda: {"memory": None, "engine": "lax"},
    "checkpoint": lambda: {"memory": rs.Memory(recompute="all"), "engine": "lax"},
    "rnnscan": lambda: {"memory": rs.Memory()},
    "rnnscan-all": lambda: {"memory": rs.Memory(recompute="all")},
}


def scans(name: str) -> dict[str, Scan]:
    """The scans of a workload, by row. Plain is first."""
    workload = ALL[name]
    if workload.family != "other":
        found = {row: scan for row, scan in same_function_scans(workload, "auto").items() if row != "rnnscan-lax"}
        if name in OFFLOADED:
            found["rnnscan-offload"] = rnnscan_scan(rs.Memory(offload=OFFLOADED[name].names), "auto")
        return found
    found = {row: _scan_of(make()) for row, make in _OF_CELL.items()}
    if name in _ASSOCIATIVE:
        found["associative-scan"] = _ASSOCIATIVE[name]
    return found


def types(name: str) -> tuple[Any, ...]:
    """The types of a workload's arguments."""
    return jax.eval_shape(ALL[name].make_arguments, jax.eval_shape(lambda: jax.random.key(0)))


def offloaded_bytes(name: str) -> int:
    """The bytes that `rnnscan.memory_report` says are kept in host memory, of the row with all names there."""
    cell, shape = OFFLOADED[name], ALL[name].shape
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), shape.features))
    xs = jax.ShapeDtypeStruct((shape.time, shape.batch, shape.features), jnp.float32)
    carry = jax.eval_shape(lambda: cell.initial_carry(jnp.zeros(xs.shape[1:])))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scan: offload=", UserWarning)  # It is not for this machine's processor.
        report = rs.memory_report(cell, params, carry, xs, memory=rs.Memory(offload=cell.names))
    return report.training.offloaded_bytes


def forward(name: str, scan: Scan) -> Callable[..., Array]:
    """The loss."""
    return ALL[name].loss(scan)


def trained(name: str, scan: Scan) -> Callable[..., Any]:
    """The loss and the gradients of all arguments."""
    loss = forward(name, scan)
    return jax.value_and_grad(loss, tuple(range(len(types(name)))))


def _scan_of(options: dict[str, Any]) -> Scan:
    def scan(cell: CellPair, params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        return rs.scan(cell.library, params, carry, xs, **options)

    return scan
