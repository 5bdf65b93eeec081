"""Dead code elimination of scans."""

from collections.abc import Sequence
from dataclasses import replace
from operator import is_, or_
from typing import Any

from jax.extend import core
from jax.interpreters import partial_eval

from rnnscan.engine.cache.by_jaxpr import cached_by_jaxpr
from rnnscan.engine.primitive.joint import joint
from rnnscan.engine.primitive.scan import Scan, Tangents, joint_scan_p, scan_p, y_size
from rnnscan.ir.leaves import places, split_list


def live_part(
    step: core.ClosedJaxpr, read: Sequence[bool], stay: Sequence[bool]
) -> tuple[core.ClosedJaxpr, list[bool]]:
    """A step without dead code, and whether each operand is left. It is the step itself, if all of it is alive.

    Args:
        step: the step.
        read: for each result whether something reads it.
        stay: for each operand whether it is left in any case.
    """
    part, operands = _part(step, tuple(read), tuple(stay))
    return part or step, operands


@cached_by_jaxpr
def _part(
    step: core.ClosedJaxpr, read: tuple[bool, ...], stay: tuple[bool, ...]
) -> tuple[core.ClosedJaxpr | None, list[bool]]:
    live, needed = partial_eval.dce_jaxpr(step.jaxpr, list(read), list(stay))
    same = len(live.eqns) == len(step.jaxpr.eqns) and all(map(is_, live.eqns, step.jaxpr.eqns))
    is_whole = same and all(read) and all(needed)
    return (None if is_whole else core.ClosedJaxpr(live, step.consts)), [*map(bool, needed)]


@cached_by_jaxpr
def copies_of_constants(step: core.ClosedJaxpr, scan: Scan) -> dict[int, tuple[int, Any]]:
    """The constants that a scan within the step takes as copies of others, and nothing else reads.

    Returns:
        For each the place of the other, and how it is copied.
    """
    places_of = {var: place for place, var in enumerate(step.jaxpr.invars[: scan.constants])}
    read, copies = {var for var in step.jaxpr.outvars if isinstance(var, core.Var)}, dict[core.Var, tuple[Any, Any]]()
    for equation in step.jaxpr.eqns:
        operands, inner = equation.invars, dict[int, tuple[int, Any]]()
        if equation.primitive in (scan_p, joint_scan_p):
            of_step, of_scan = equation.params["step"], equation.params["scan"]
            inner = dict(enumerate(of_scan.copied, len(of_step.in_avals))) | copies_of_constants(of_step, of_scan)
        copies |= {operands[place]: (operands[of], copy) for place, (of, copy) in inner.items()}
        read.update(var for place, var in enumerate(operands) if place not in inner and isinstance(var, core.Var))
    if scan.condition is not None:
        asked = partial_eval.dce_jaxpr(scan.condition.jaxpr, [True])[1]
        read.update(var for var, is_read in zip(step.jaxpr.invars, asked, strict=False) if is_read)
    return {
        places_of[var]: (places_of[of], copy)
        for var, (of, copy) in copies.items()
        if var in places_of and of in places_of and var not in read
    }


def _live_step(
    step: core.ClosedJaxpr, scan: Scan, results: Sequence[bool]
) -> tuple[core.ClosedJaxpr, list[bool], list[bool]]:
    """The part of a step that is alive, and which operands and results are left.

    Args:
        step: the step.
        scan: its other parameters.
        results: for each result of the scan whether something reads it.
    """
    carry, ys = split_list(results, [scan.carry])
    constants = [False] * scan.constants
    if scan.condition is not None:
        _, read = partial_eval.dce_jaxpr(scan.condition.jaxpr, [True])
        constants, of_carry = split_list(read, [scan.constants])
        carry = [True, *map(or_, carry[1:], of_carry[1:])]  # Derivatives read the count, where nothing else does.
    kept = [False] * len(scan.options.kept)
    of_x = [False] * (len(step.in_avals) - scan.constants - scan.carry)
    while True:
        stay = [*constants, *carry, *of_x]
        live, needed = live_part(step, [*carry, *ys, *kept], stay)
        of_carry = split_list(needed, [scan.constants, scan.carry])[1]
        if of_carry == carry:
            break
        carry = [*map(or_, carry, of_carry)]
    if kept:  # Those that are made in any case.
        made = {*live.jaxpr.invars, *(var for equation in live.jaxpr.eqns for var in equation.outvars)}
        kept = [isinstance(var, core.Var) and var in made for var in step.jaxpr.outvars[len(results) :]]
        live, needed = live_part(step, [*carry, *ys, *kept], stay)
    return live, needed, [*carry, *ys, *kept]


def _drop_unused(used: Sequence[bool], *others: Any) -> tuple[list[bool], Any]:
    """What nothing reads is not computed: results, and leaves of the carry that only these need, as in `lax.scan`."""
    equation = others[-1]  # From jax 0.12 on the references that are read come before it.
    step, scan, saving, tangents = map(equation.params.get, ("step", "scan", "saving", "tangents"))
    if not any(used) and not equation.effects:
        return [False] * len(equation.invars), None
    count = scan.carry + y_size(step, scan)
    read, after = split_list(used, [count])
    starts = saving.starts if saving else ()
    if tangents is not None:
        reached = _tangents_reached(step, scan, tangents, after)
        read = [*map(or_, read, reached.results)]
    else:
        for leaf, is_used in zip(starts, after, strict=True):
            read[leaf] |= is_used
    live, needed, results = _live_step(step, scan, read)
    operands = [*needed, *(needed[index] for index, _ in scan.copied)]
    outputs, kept = split_list(results, [count])
    primitive, last = scan_p, dict[str, Any](saving=None)
    if tangents is not None:
        if any(reached.results):
            flags = tuple(is_active for is_active, stays in zip(reached.operands, operands, strict=True) if stays)
            active = tuple(is_active for is_active, stays in zip(reached.results, outputs, strict=True) if stays)
            primitive, last = joint_scan_p, {"tangents": Tangents(flags, active)}
        operands += [operands[index] and reached.operands[index] for index in places(tangents.operands)]
        outputs += [reached.results[index] for index in places(tangents.results)]
    elif saving is not None:
        leaf = {old: new for new, old in enumerate(places(outputs[: scan.carry]))}
        used_starts = tuple(leaf[old] for old, is_used in zip(starts, after, strict=True) if is_used)
        is_whole = live is step and all(after)
        last["saving"] = replace(saving, starts=used_starts, inner=saving.inner if is_whole else None)
        outputs += after
    constant = {old: new for new, old in enumerate(places(needed[: scan.constants]))}
    labels = tuple(label for label, stays in zip(scan.options.kept, kept, strict=True) if stays)
    scan = replace(
        scan,
        constants=len(constant),
        carry=sum(results[: scan.carry]),
        options=replace(scan.options, kept=labels),
        copied=tuple((constant[index], copy) for index, copy in scan.copied if index in constant),
        condition=scan.condition and _with_operands(scan.condition, places(needed[: scan.constants + scan.carry])),
    )
    return operands, equation.replace(
        invars=[equation.invars[index] for index in places(operands)],
        outvars=[equation.outvars[index] for index in places(outputs)],
        primitive=primitive,
        effects=live.jaxpr.effects,
        params={"step": live, "scan": scan, **last},
    )


def _tangents_reached(step: core.ClosedJaxpr, scan: Scan, tangents: Tangents, read: Sequence[bool]) -> Tangents:
    """The tangents that those which something reads depend on. One that nothing reads may have no forward mode.

    Args:
        step: the step.
        scan: the other parameters of the scan.
        tangents: those that it has.
        read: whether something reads each of the results' tangents.
    """
    if not any(read):  # There may be none: the tangent of an operand reaches no result that is an integer.
        return Tangents((False,) * len(tangents.operands), (False,) * len(tangents.results))
    if all(read):
        return tangents
    both, active = joint(step, scan, tangents), places(tangents.results)
    place = dict(zip(active, both.results[len(tangents.results) :], strict=True))
    wanted = {place[result] for result, is_read in zip(active, read, strict=True) if is_read}
    count = both.scan.carry + y_size(both.step, both.scan)
    _, needed, made = _live_step(both.step, both.scan, [index in wanted for index in range(count)])
    # The operand of a value is at its own place. That of a tangent is at another, or there is none.
    pairs = zip(both.operands, needed, strict=True)
    reached = {of for (operand, of), is_needed in pairs if is_needed and operand != of}
    return Tangents(
        tuple(is_active and operand in reached for operand, is_active in enumerate(tangents.operands)),
        tuple(result in place and made[place[result]] for result in range(len(tangents.results))),
    )


def _with_operands(closed: core.ClosedJaxpr, operands: Sequence[int]) -> core.ClosedJaxpr:
    """A jaxpr with some of its operands. It reads no other."""
    jaxpr = closed.jaxpr
    return core.ClosedJaxpr(jaxpr.replace(invars=[jaxpr.invars[index] for index in operands]), closed.consts)


partial_eval.dce_rules[scan_p] = partial_eval.dce_rules[joint_scan_p] = _drop_unused
