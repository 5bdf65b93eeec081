"""Copies of constants, through which their gradients are summed over segments.

JAX adds up the cotangents of what a loop over segments reads, in its dtype. A copy is not read: it has the cotangents,
in the dtype and the shape in which they are to be summed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax.extend import core

from rnnscan._util.dtypes import at_least_float32
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.loops.sharded_rows import ShardedRows, sharded_rows
from rnnscan.engine.primitive.scan import Scan, bind
from rnnscan.ir.leaves import split_list


@dataclass(frozen=True)
class Copy:
    """How a constant is copied.

    Attributes:
        dtype: of the constant. The copy has at least float32.
        rows: the rows, for each part of which there is a copy; None: there is one.
    """

    dtype: Any
    rows: ShardedRows | None = None

    def of(self, constant: Any) -> Any:
        """The copy. Its gradient, rounded once, is that of the constant."""
        wide = constant.astype(at_least_float32(self.dtype))
        return wide if self.rows is None else self.rows.spread(wide)

    def undone(self, copy: Any) -> Any:
        """The constant, from its copy, or the tangent of it."""
        wide = copy if self.rows is None else self.rows.mean(copy)
        return wide.astype(self.dtype)


# Each with its position among the constants.
Copies: TypeAlias = tuple[tuple[int, Copy], ...]


def constants_and_copies(
    constants: Sequence[Any], leaves: Sequence[Any], step: FlatStep, *, in_segments: bool
) -> tuple[list[Any], list[Any], Copies]:
    """The constants where the rows lie, and copies of those whose gradients are summed over segments.

    Args:
        constants: the constants.
        leaves: the types of the carry and of an input, which have rows.
        step: the step.
        in_segments: whether the scan runs in segments.

    Returns:
        The constants, their copies, and how each was copied.
    """
    rows = sharded_rows(leaves, constants)
    if rows is not None:
        constants = [rows.on_mesh(constant) for constant in constants]
    copied = _copied(constants, rows, step) if in_segments else ()
    return [*constants], [copy.of(constants[index]) for index, copy in copied], copied


def _copied(constants: Sequence[Any], rows: ShardedRows | None, step: FlatStep) -> Copies:
    """The constants whose cotangents are summed over segments in a wider dtype than theirs, or for parts of rows."""
    floats = {index: leaf.dtype for index, leaf in enumerate(constants) if jnp.issubdtype(leaf.dtype, jnp.inexact)}
    copied = {index: Copy(dtype) for index, dtype in floats.items() if at_least_float32(dtype) != dtype}
    summed = [] if rows is None else rows.summed_for(constants, step.constants_over_units)
    copied |= {index: Copy(constants[index].dtype, rows) for index in summed}
    return tuple(copied.items())


def bind_with_copies(
    constants: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], step: core.ClosedJaxpr, scan: Scan
) -> tuple[list[Any], list[Any]]:
    """The final carry and ys of a scan, as an equation of the current trace.

    A constant that was copied has its derivative through its copy, which is not read.

    Args:
        constants: the constants, and then the copies of `scan.copied`.
        carry: the initial carry.
        xs: the inputs.
        step: the step.
        scan: the other parameters.
    """
    own, copies = split_list(constants, [scan.constants])
    final, ys = split_list(bind([*own, *carry, *xs, *copies], step, scan), [scan.carry])
    return final, ys
