"""A scan of values and their tangents together, as a scan like others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
from jax import lax
from jax.extend import core
from jax.interpreters import ad

from rnnscan.engine.cache.by_jaxpr import cached_by_jaxpr
from rnnscan.engine.primitive.scan import Scan, Tangents, bind, reading, y_size
from rnnscan.ir.jaxprs import without_dead_code
from rnnscan.ir.leaves import places, split_list
from rnnscan.ir.rules import jvp, zero


# (operands, step, parameters) -> results
Run: TypeAlias = Callable[[Sequence[Any], core.ClosedJaxpr, Scan], list[Any]]


@dataclass(frozen=True)
class Joint:
    """A scan of values and tangents together.

    Attributes:
        step: its step.
        scan: its parameters.
        operands: for each operand its place among those of the scan with tangents, and the place of the value that it
            is the tangent of. The first is None where the tangent is zero.
        results: the places of the results, and then of the tangents, among its results.
    """

    step: core.ClosedJaxpr
    scan: Scan
    operands: tuple[tuple[int | None, int], ...]
    results: tuple[int, ...]

    def chosen(self, operands: Sequence[Any]) -> list[Any]:
        """The operands, of those of the scan with tangents."""
        # Zeros come from the values: under `shard_map` they must vary over the same axes.
        return [lax.full_like(operands[of], 0) if place is None else operands[place] for place, of in self.operands]


@cached_by_jaxpr
def joint(step: core.ClosedJaxpr, scan: Scan, tangents: Tangents) -> Joint:
    """The scan that computes values and tangents together."""
    size, count, run = len(step.in_avals), scan.carry + y_size(step, scan), core.jaxpr_as_fun(step)
    given, active_results = tangents.operands[:size], places(tangents.results)
    # A leaf of the carry without a tangent has one where its new value has.
    carry = range(scan.constants, scan.constants + scan.carry)
    active = places([tangents.results[i - scan.constants] if i in carry else flag for i, flag in enumerate(given)])
    # The values of each group, and then its tangents: of constants, carry and x; of the new carry and y.
    groups = [_slots(group, active) for group in split_list(range(size), [scan.constants, scan.carry])]
    order = [slot for group in groups for slot in group]
    made = [slot for group in split_list(range(count), [scan.carry]) for slot in _slots(group, active_results)]

    def run_both(*leaves: Any) -> list[Any]:
        values = dict(zip(order, leaves, strict=True))
        primals = [values[leaf, False] for leaf in range(size)]
        results, dots = jvp(run, primals, [values.get((leaf, True), zero(primals[leaf])) for leaf in range(size)])
        return [ad.instantiate_zeros(dots[leaf]) if is_dot else results[leaf] for leaf, is_dot in made]

    avals = [step.in_avals[leaf].to_tangent_aval() if is_dot else step.in_avals[leaf] for leaf, is_dot in order]
    dots = {leaf: len(tangents.operands) + number for number, leaf in enumerate(places(tangents.operands))}
    options = replace(scan.options, offload=(), chooses_kept_values=False, kept=(), windows=None)
    condition = None
    if scan.condition is not None:
        places_read = [order.index((leaf, False)) for leaf in range(scan.constants + scan.carry)]
        condition = reading(scan.condition, avals[: len(groups[0]) + len(groups[1])], places_read)
    return Joint(
        # What has no forward mode is dead code, if nothing reads its tangent.
        without_dead_code(jax.make_jaxpr(run_both)(*avals)),
        Scan(len(groups[0]), len(groups[1]), scan.length, scan.reverse, options, condition=condition),
        tuple((dots.get(leaf) if is_dot else leaf, leaf) for leaf, is_dot in order),
        tuple(made.index(slot) for slot in _slots(range(count), active_results)),
    )


def _slots(leaves: Sequence[int], with_tangents: Sequence[int]) -> list[tuple[int, bool]]:
    """Places of values, and then those of their tangents."""
    return [*((leaf, False) for leaf in leaves), *((leaf, True) for leaf in leaves if leaf in with_tangents)]


def jointly(
    operands: Sequence[Any], step: core.ClosedJaxpr, scan: Scan, tangents: Tangents, run: Run = bind
) -> list[Any]:
    """The results and their tangents, by one scan."""
    both = joint(step, scan, tangents)
    results = run(both.chosen(operands), both.step, both.scan)
    return [results[place] for place in both.results]
