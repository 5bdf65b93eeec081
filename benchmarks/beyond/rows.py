"""The rows of a use: plain `lax.scan`, `jax.checkpoint` on its body, rnnscan, and the chunkwise form by hand."""

from functools import partial
from typing import Any

import jax
from jax import lax

import rnnscan as rs
from benchmarks.beyond.use import Cell, Problem, Scan
from benchmarks.rows import JaxRow


DESCRIPTIONS = {
    "plain": "`lax.scan`, differentiated by JAX",
    "checkpoint": "the same with `jax.checkpoint` on the body of the scan",
    "rnnscan": "`rs.scan`, which keeps some values of a cell without names within few bytes",
    "rnnscan-all": '`rs.scan` with `Memory(recompute="all")`, whose bytes are measured, and not its time',
    "chunkwise": "linear attention in the chunkwise form of its papers, by hand",
}


def plain_scan(cell: Cell, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    """The reference of every ratio. `options`: `length` and `reverse`."""
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs, **options)


def checkpoint_scan(cell: Cell, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    """`jax.checkpoint` without barriers, which JAX's documentation calls unnecessary in the body of a scan."""
    body = jax.checkpoint(lambda carry, x: cell(params, carry, x), prevent_cse=False)
    return lax.scan(body, carry, xs, **options)


SCANS: dict[str, Scan] = {
    "plain": plain_scan,
    "checkpoint": checkpoint_scan,
    "rnnscan": rs.scan,
    "rnnscan-all": partial(rs.scan, memory=rs.Memory(recompute="all")),
}


def use_rows(problem: Problem) -> dict[str, JaxRow]:
    """The rows, plain first."""
    floats, others = problem.split_arguments()
    losses = {name: problem.loss(scan) for name, scan in SCANS.items()}
    by_chunks = problem.chunkwise_loss()
    if by_chunks is not None:
        losses["chunkwise"] = by_chunks
    return {name: JaxRow(loss, (floats,), (others,)) for name, loss in losses.items()}
