"""Find how a loop can run over all steps at once: as a delay, a linear recurrence, or by Newton's method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from rnnscan._messages import listing
from rnnscan.engine.analysis.clamped import is_clamped_shift
from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.engine.analysis.elementwise import MixesError, check_elementwise
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.linear import are_linear, is_linear
from rnnscan.engine.costs.costs import unbatchable
from rnnscan.ir.components import Components
from rnnscan.ir.program import Atom, Equation, Value
from rnnscan.newton import Newton, NewtonInNet


# The most leaves that depend on each other; their Jacobian has this many rows and columns at each element.
LARGEST_BLOCK = 4


@dataclass(frozen=True)
class Solved:
    """A loop that runs over all steps at once.

    Attributes:
        kind: "delay": the new leaf does not depend on the leaf. "linear": one iteration is exact. "elementwise": by
            Newton's method. "dense": by quasi-Newton iterations, with the diagonal of the Jacobian.
        cycle: the loop.
        newton: the options.
    """

    kind: Literal["delay", "linear", "elementwise", "dense"]
    cycle: Cycle
    newton: Newton

    @property
    def newton_solves(self) -> bool:
        """Whether it takes iterations."""
        return self.kind in ("elementwise", "dense")


def solved(cycle: Cycle, newton: Newton) -> Solved | None:
    """How a loop runs over all steps at once; None if it runs step by step."""
    if not cycle.depends:
        return Solved("delay", cycle, newton)
    if _why_not(cycle):
        dense = newton.jacobian == "diagonal" and not _why_not_dense(cycle)
        return Solved("dense", cycle, newton) if dense else None
    if are_linear(cycle.equations, cycle.leaves, cycle.new_leaves):
        return Solved("linear", cycle, newton)
    return Solved("elementwise", cycle, newton)


def kind_of_loop(
    equations: Sequence[Equation], leaves: Sequence[Value], new_leaves: Sequence[Atom]
) -> Literal["linear", "elementwise", "recurrent"]:
    """The kind of work of a loop, for reports.

    Args:
        equations: the equations between the leaves and the new leaves.
        leaves: the leaves of the carry, which depend on each other.
        new_leaves: their new values.
    """
    if len(leaves) == 1 and any(has(equations, leaves[0], new_leaves[0]) for has in (is_linear, is_clamped_shift)):
        return "linear"
    cycle = Cycle(tuple(equations), tuple(leaves), tuple(new_leaves))
    return "elementwise" if cycle.depends and not _why_not(cycle) else "recurrent"


def check_loops(step: FlatStep, places: Sequence[str], newton: Newton) -> None:
    """Check that there are loops to solve, and that each loop of floats can be solved.

    Args:
        step: the step.
        places: the place of each leaf of its carry that it changes.
        newton: the options.

    Raises:
        ValueError: if not; it says what was found.
    """
    equations, delays = step.program.equations, list[str]()
    components = Components(equations, step.carry, step.new_carry)
    solves = False
    for members, cycle_equations in zip(components.members, components.by_group(equations), strict=True):
        leaves, new_leaves = [step.carry[i] for i in members], [step.new_carry[i] for i in members]
        cycle = Cycle(tuple(cycle_equations), tuple(leaves), tuple(new_leaves))
        way = solved(cycle, newton)
        solves = solves or (way is not None and way.kind != "delay")
        place = " and ".join(f"carry{places[index]}" for index in members)
        if len(members) == 1 and is_linear(cycle_equations, leaves[0], new_leaves[0]):
            solves = True
        elif way is not None:
            delays.append(f"{place} is a delay")
        elif any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves):
            raise ValueError(
                f"scan: `parallel` solves loops whose elements do not mix; got {newton!r} and a loop of {place}, where "
                f"{_why_not(cycle)}. {_advice(cycle, newton)}"
            )
    if not solves and not isinstance(newton, NewtonInNet):
        raise ValueError(
            f"scan: `parallel` solves loops over many steps at once, and there is none; got {newton!r}, and "
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
