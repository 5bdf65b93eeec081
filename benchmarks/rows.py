"""The rows with the same loss and parameters: rnnscan's memory choices, and plain `lax.scan`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

import rnnscan as rs
from benchmarks.workloads import CellPair, Scan, Workload


Engine = Literal["auto", "fission", "lax"]

DESCRIPTIONS = {
    "plain": "`lax.scan` over a textbook cell, differentiated by JAX",
    "checkpoint": "the same with `jax.checkpoint` on the body of the scan",
    "segments": "two nested `lax.scan` of sqrt(T) steps each, the inner one under `jax.checkpoint`",
    "associative-scan": "`lax.associative_scan`, parallel in time, as in the cell's paper",
    "rnnscan": "`rs.scan`, whose default is `Memory()`: every name is kept",
    "rnnscan-all": '`Memory(recompute="all")`: no name is kept',
    "rnnscan-newton": "`parallel=Newton(max_iterations=5)`, for a GPU or TPU; slower on a CPU",
    "rnnscan-lax": '`Memory(recompute="all")` with `engine="lax"`',
}


# With new parameters ParaGRU and ParaLSTM take 3 or 4 iterations. A count of launches takes the limit for the trips.
NEWTON = rs.Newton(max_iterations=5)


@dataclass(frozen=True)
class JaxRow:
    """A loss in JAX.

    Attributes:
        loss: a function of the arguments, with a scalar result.
        arguments: `(params, *inputs)`; all get gradients.
        data: arguments of the loss after these, without gradients.
    """

    loss: Callable[..., Any]
    arguments: tuple[Any, ...]
    data: tuple[Any, ...] = ()


def same_function_rows(workload: Workload, engine: Engine) -> dict[str, JaxRow]:
    """The rows with the loss and gradients of plain `lax.scan`, to rounding. Plain is first.

    Args:
        workload: the workload.
        engine: the engine of rnnscan's rows, except "rnnscan-lax".
    """
    arguments = workload.arguments()
    return {
        name: JaxRow(workload.loss(scan), arguments) for name, scan in same_function_scans(workload, engine).items()
    }


def same_function_scans(workload: Workload, engine: Engine) -> dict[str, Scan]:
    """The scans of these rows."""
    memory = workload.memory
    recompute = replace(memory, recompute="all")
    scans: dict[str, Scan] = {"plain": plain_scan, "checkpoint": checkpoint_scan}
    if memory.segment is not None:
        scans["segments"] = segment_scan
    if workload.family == "min_gru":
        scans["associative-scan"] = associative_min_gru
    scans["rnnscan"] = rnnscan_scan(memory, engine)
    scans["rnnscan-all"] = rnnscan_scan(recompute, engine)
    if workload.family == "para" and engine != "lax":
        scans["rnnscan-newton"] = rnnscan_scan(memory, engine, NEWTON)
    scans["rnnscan-lax"] = rnnscan_scan(recompute, "lax")
    return scans


def rnnscan_scan(memory: rs.Memory, engine: Engine, parallel: rs.Newton | None = None) -> Scan:
    """`rnnscan.scan` under a memory choice."""

    def scan(cell: CellPair, params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        return rs.scan(cell.library, params, carry, xs, memory=memory, engine=engine, parallel=parallel)

    return scan


def plain_scan(cell: CellPair, params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
    """The reference of every ratio."""
    return lax.scan(lambda carry, x: cell.textbook(params, carry, x), carry, xs)


def checkpoint_scan(cell: CellPair, params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
    """`jax.checkpoint` without barriers, which JAX's documentation calls unnecessary in the body of a scan."""
    body = jax.checkpoint(lambda carry, x: cell.textbook(params, carry, x), prevent_cse=False)
    return lax.scan(body, carry, xs)


def segment_scan(cell: CellPair, params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
    """A user's own version of `segment="sqrt"`, for a square T."""
    steps = isqrt(len(xs))
    if steps * steps != len(xs):
        raise ValueError(f"segment_scan: the number of steps must be a square; got {len(xs)}.")

    @jax.checkpoint
    def segment(carry: Any, xs: Any) -> tuple[Any, Any]:
        return plain_scan(cell, params, carry, xs)

    carry, ys = lax.scan(segment, carry, xs.reshape(steps, steps, *xs.shape[1:]))
    return carry, jax.tree.map(lambda leaf: leaf.reshape(len(xs), *leaf.shape[2:]), ys)


def associative_min_gru(cell: CellPair, params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
    """The minGRU from a state of zeros."""
    update, candidate = jnp.split(xs @ params["kernel"] + params["bias"], 2, axis=-1)
    update = jax.nn.sigmoid(update)

    def combine(earlier: Any, later: Any) -> Any:
        return earlier[0] * later[0], earlier[1] * later[0] + later[1]

    ys = lax.associative_scan(combine, (1 - update, update * candidate))[1]
    return (ys[-1],), ys
