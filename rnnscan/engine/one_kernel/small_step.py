"""The step of a loop that XLA compiles to one kernel, and what it keeps for its derivative."""

from dataclasses import dataclass, replace
from typing import Any

from rnnscan.engine.analysis.derivative_reads import read_by_derivatives
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.one_kernel.fits import OneKernel
from rnnscan.ir.program import Atom, Program, total_bytes, values_of
from rnnscan.ir.traits import Kind, traits_of
from rnnscan.memory import Memory


@dataclass(frozen=True, eq=False)
class SmallStep:
    """The step of a loop that is one kernel.

    Attributes:
        step: the step, written out.
        kernel: the step as it was, and what is written out of it.
        keeps_all: whether all that the derivative reads is kept.
        is_plain: whether the loop is one kernel as it is, so that plain autodiff of `lax.scan` runs it.
    """

    step: FlatStep
    kernel: OneKernel
    keeps_all: bool
    is_plain: bool

    @property
    def policy(self) -> Any:
        """The policy for `jax.checkpoint` on the step."""
        return _all_but_views if self.keeps_all else None


def small_step(flat: FlatStep, length: int, memory: Memory, choices: Heuristics, *, named: bool) -> SmallStep | None:
    """The step of a loop that is one kernel; None if the loop is not faster so, or must keep values by their names.

    Args:
        flat: the step.
        length: the number of steps.
        memory: the memory choice.
        choices: the choices of the platform.
        named: whether the step has named values.
    """
    if memory.recompute not in ((), "all") or memory.offload or memory.chunk is not None:
        return None
    if any(equation.is_wider_than_allowed for equation in flat.program.equations):
        return None  # What is written out would be traced without `jax.enable_x64`.
    kernel = OneKernel(flat.program, choices.machine)
    if not kernel.pays:
        return None
    assert kernel.written is not None
    step = replace(flat, program=kernel.written)
    keeps_all = has_small_residuals(step.program, length, memory, choices)
    is_plain = keeps_all and memory.segment is None and not kernel.calls
    if not is_plain and not kernel.calls:
        return None  # A loop that is one kernel as it is gains nothing more.
    if named and memory.recompute == () and not keeps_all:
        return None
    return SmallStep(step, kernel, keeps_all, is_plain)


def has_small_residuals(program: Program, length: int, memory: Memory, choices: Heuristics) -> bool:
    """Whether all residuals are kept: they are so few that computing them again is no gain.

    Args:
        program: the step.
        length: the number of steps.
        memory: the memory choice, which may recompute by choice.
        choices: the choices of the platform.
    """
    longest = max(sub_scan.segment[-1] if sub_scan.segment else sub_scan.steps for sub_scan in memory.sub_scans(length))
    return memory.recompute == () and longest * residual_bytes(program) <= choices.small_residuals


def residual_bytes(program: Program) -> int:
    """The bytes of the values of a step that its derivative reads, those that are the same at every step aside."""
    maker, read = program.maker, set[Atom]()
    for atom in values_of(read_by_derivatives(program)):
        source: Atom = atom
        while source in maker and maker[source].kind in _VIEWS:
            source = maker[source].inputs[0]
        read.add(source)
    return total_bytes(values_of(read - {*program.invariant}))


# They are computed again, which XLA fuses with what reads them.
_VIEWS = (Kind.VIEW, Kind.PART, Kind.JOIN)


def _all_but_views(primitive: Any, *_: Any, **params: Any) -> bool:
    return traits_of(primitive.name).kind not in _VIEWS
