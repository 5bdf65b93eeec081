"""Recurrences: how a loop can run over all steps in parallel, by the form of its step.

A kind is a test of its form here, and an executor in `loops/recurrences/`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax.numpy as jnp

from rnnscan._util.messages import listing
from rnnscan.engine.analysis.clamped import is_clamped_shift
from rnnscan.engine.analysis.cycle import Cycle, cycles_of
from rnnscan.engine.analysis.elementwise import MixesError, check_elementwise
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.matrix_groups import Group, group_of
from rnnscan.engine.costs.costs import unbatchable
from rnnscan.ir.linear import are_linear
from rnnscan.ir.program import Atom, Equation, Value, outputs_of
from rnnscan.newton import Newton, NewtonInNet


# The most leaves that depend on each other; their Jacobian has this many rows and columns at each element.
LARGEST_BLOCK = 4


# As reports show it.
KindOfWork: TypeAlias = Literal["linear", "elementwise", "recurrent"]
# How a loop runs over all steps in parallel.
Kind: TypeAlias = Literal["delay", "affine", "clamped", "matrix", "scan", "block", "elementwise", "dense"]


@dataclass(frozen=True)
class Recurrence:
    """A loop that runs over all steps of a chunk in parallel.

    Attributes:
        kind: "delay": the new leaves do not depend on the leaves. "affine": `c' = a c + b`, and "clamped": `c' =
            min(max(c + s, low), high)`, for one leaf, as associative scans. "matrix": `S' = a S + k v^T`, in chunkwise
            form. "scan": step by step in a separate scan of the leaves. "block": leaves that depend linearly on each
            other at the same element, exactly. "elementwise": by Newton's method. "dense": by quasi-Newton iterations,
            with the diagonal of the Jacobian.
        cycle: the loop.
        newton: the options of Newton's method; None: it is not asked for.
        group: the matrix states, for the kind "matrix".
    """

    kind: Kind
    cycle: Cycle
    newton: Newton | None = None
    group: Group | None = None

    @property
    def results(self) -> Sequence[Value]:
        """The values that an executor returns, stacked: leaves before each step, or what is read of matrix states."""
        return self.cycle.leaves if self.group is None else self.group.results

    @property
    def is_associative(self) -> bool:
        """Whether it runs as an associative scan of one leaf."""
        return self.kind in _ASSOCIATIVE

    @property
    def newton_solves(self) -> bool:
        """Whether it takes iterations."""
        return self.kind in ("elementwise", "dense")


def _is_affine(cycle: Cycle) -> bool:
    same_dtype = all(output.dtype == cycle.leaves[0].dtype for output in outputs_of(cycle.equations))
    return same_dtype and cycle.is_linear()


# The forms of one leaf whose steps can be composed.
_ASSOCIATIVE: dict[Kind, Callable[[Cycle], bool]] = {"affine": _is_affine, "clamped": is_clamped_shift}


def recurrence_of(cycle: Cycle, newton: Newton | None = None, *, associative: bool) -> Recurrence | None:
    """How a loop runs over all steps in parallel; None if it runs step by step.

    Args:
        cycle: the loop.
        newton: the options of Newton's method; None: it is not asked for.
        associative: whether to run associative scans.
    """
    group = group_of(cycle.equations)
    if group is not None:
        return Recurrence("matrix", cycle, group=group)
    kind = None if newton is None else _kind_for_newton(cycle, newton)
    if kind is None and associative:
        kind = next((kind for kind, has_form in _ASSOCIATIVE.items() if has_form(cycle)), None)
    return None if kind is None else Recurrence(kind, cycle, newton)


def _kind_for_newton(cycle: Cycle, newton: Newton) -> Kind | None:
    if not cycle.depends:
        return "delay"
    if _why_not(cycle):
        return "dense" if newton.jacobian == "diagonal" and not _why_not_dense(cycle) else None
    return "block" if are_linear(cycle.equations, cycle.leaves, cycle.new_leaves) else "elementwise"


def kinds_of_loops(
    equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom]
) -> Iterator[tuple[tuple[int, ...], Cycle, KindOfWork]]:
    """The loops of a step as `cycles_of` has them, each with its kind of work, for reports."""
    for members, cycle in cycles_of(equations, carry, new_carry):
        yield members, cycle, _kind_of_work(cycle)


def _kind_of_work(cycle: Cycle) -> KindOfWork:
    if cycle.is_linear() or is_clamped_shift(cycle):
        return "linear"
    return "elementwise" if cycle.depends and not _why_not(cycle) else "recurrent"


def check_loops(step: FlatStep, places: Sequence[str], newton: Newton) -> None:
    """Check that there are loops to solve, and that each loop of floats can be solved.

    Args:
        step: the step.
        places: the place of each leaf of its carry that it changes.
        newton: the options.

    Raises:
        ValueError: if not, with the reason.
    """
    solves, delays = False, list[str]()
    for members, cycle in cycles_of(step.program.equations, step.carry, step.new_carry):
        kind = _kind_for_newton(cycle, newton)
        solves = solves or kind not in (None, "delay")
        place = " and ".join(f"carry{places[index]}" for index in members)
        if cycle.is_linear():
            solves = True
        elif kind is not None:
            delays.append(f"{place} is a delay")
        elif any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in cycle.leaves):
            raise ValueError(
                f"scan: `parallel` solves loops whose elements do not mix; got {newton!r} and a loop of {place}, where "
                f"{_why_not(cycle)}. {_advice(cycle, newton)}"
            )
    if not solves and not isinstance(newton, NewtonInNet):
        raise ValueError(
            f"scan: `parallel` solves loops in parallel over time, and there is none; got {newton!r}, and "
            f"{', '.join(delays) or 'no carry of floats'}. Leave `parallel` out."
        )


def _advice(cycle: Cycle, newton: Newton) -> str:
    if newton.jacobian == "diagonal":
        return f"The diagonal is of no use here, because {_why_not_dense(cycle)}. Leave `parallel` out."
    if _why_not_dense(cycle):
        return "Leave `parallel` out to run it step by step."
    return 'Set jacobian="diagonal" to try with a part of its Jacobian, or leave `parallel` out.'


def _why_not_dense(cycle: Cycle) -> str:
    """Why quasi-Newton iterations cannot solve a loop; empty if they can."""
    if len({leaf.shape for leaf in cycle.leaves}) > 1:
        return "its leaves have several shapes"
    unbatched = [equation.name for equation in cycle.equations if unbatchable(equation)]
    if unbatched:
        return f"{unbatched[0]} runs step by step"
    return _why_not_block(cycle)


def _why_not(cycle: Cycle) -> str:
    """Why a loop is not elementwise; empty if it is."""
    reason = _why_not_block(cycle)
    if reason:
        return reason
    try:
        check_elementwise(cycle.equations, cycle.leaves, cycle.new_leaves)
    except MixesError as error:
        return str(error)
    return ""


def _why_not_block(cycle: Cycle) -> str:
    """Why the leaves have no small Jacobian at each element; empty if they have one."""
    dtypes = sorted({str(leaf.dtype) for leaf in cycle.leaves})
    if len(cycle.leaves) > LARGEST_BLOCK:
        return f"{len(cycle.leaves)} leaves depend on each other, more than {LARGEST_BLOCK}"
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in cycle.leaves):
        return f"its dtype is {listing(dtypes)}, not a real float"
    return ""
