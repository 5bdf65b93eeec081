"""The tangents of a scan: a scan that is linear in them, and reads what another has saved.

    rnnscan_linear_scan[step, scan, linear](*saved, *tangents) -> tangents of the results

Reverse mode transposes it. Other transformations take it for what it computes: the tangents of a scan of values and
tangents together, which reads no more than the scan's arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, zip_longest
from operator import and_
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import ad, partial_eval

from rnnscan.engine.plan.bound import scan_plan
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.primitive.dead_code import copies_of_constants
from rnnscan.engine.primitive.joint import jointly
from rnnscan.engine.primitive.scan import (
    Scan,
    ScanPrimitive,
    Tangents,
    counted,
    lowered_for_each_platform,
    result_types,
)
from rnnscan.engine.run.cotangent_scan import cotangents_of_scan
from rnnscan.engine.run.saved import Saved
from rnnscan.ir.leaves import Keys, as_arrays, as_key_data, places, replace_at, split_list, with_keys
from rnnscan.ir.rules import batch_by, have_tangents, jvp_rule, over_axis, zero


linear_scan_p = ScanPrimitive("rnnscan_linear_scan")


@dataclass(frozen=True)
class Linear:
    """The parameters of a linear scan besides those of the scan whose tangents it computes.

    Attributes:
        tangents: which operands of that scan have a tangent here, and the results whose tangents are computed.
        keys: the saved values that are the data of random keys.
        saved: the number of saved values.
    """

    tangents: Tangents
    keys: Keys
    saved: int


def tangents_of_scan(
    step: core.ClosedJaxpr, scan: Scan, saved: Saved, results: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """The tangents of the final carry and of ys.

    Args:
        step: the step.
        scan: the other parameters of the scan.
        saved: the values that the scan has saved.
        results: the results.
        tangents: the tangent of each leaf of constants, carry and xs, or a symbolic zero.

    Returns:
        A tangent for each result, or a symbolic zero.
    """
    wanted = have_tangents(tangents)
    active = scan_plan(step, scan).step.active(wanted)
    zeros = [*map(zero, results)]
    if not any(active):
        return zeros
    stored = saved.stored(_residuals(step, scan), copies_of_constants(step, scan))
    operands, keys = as_key_data(jax.tree.leaves(stored))
    linear = Linear(Tangents(tuple(wanted), tuple(active)), keys, len(operands))
    dots = linear_scan_p.bind(*operands, *compress(tangents, wanted), step=step, scan=scan, linear=linear)
    return replace_at(zeros, places(active), dots)


def _types(*_: Any, step: core.ClosedJaxpr, scan: Scan, linear: Linear) -> list[Any]:
    return [aval.to_tangent_aval() for aval in compress(result_types(step, scan), linear.tangents.results)]


def _residuals(step: core.ClosedJaxpr, scan: Scan) -> ResidualPlan:
    return scan_plan(step, scan).for_derivatives.residuals


def _reached(step: core.ClosedJaxpr, scan: Scan, tangents: Tangents) -> list[bool]:
    """For each operand of the scan whether a tangent that is computed depends on its tangent in some step."""
    final, ys = split_list(tangents.results, [scan.carry])
    return scan_plan(step, scan).step.with_cotangents(tangents.operands, final, ys)


def _saved(operands: Sequence[Any], step: core.ClosedJaxpr, scan: Scan, linear: Linear) -> Saved:
    residuals = _residuals(step, scan)
    reads = Saved.reads(residuals, scan, len(linear.tangents.operands) - scan.constants - scan.carry)
    copies = copies_of_constants(step, scan)
    structure = jax.tree.structure(reads.stored(residuals, copies))
    saved: Saved = jax.tree.unflatten(structure, with_keys(operands[: linear.saved], linear.keys))
    return saved.restored(scan, copies)


def _run(*operands: Any, step: core.ClosedJaxpr, scan: Scan, linear: Linear, platform: str | None = None) -> list[Any]:
    saved, copies = _saved(operands, step, scan, linear), dict(scan.copied)
    wanted, read = linear.tangents.operands, linear.tangents.results
    pairs = zip(places(wanted), operands[linear.saved :], strict=True)
    dots = [copies[index].undone(leaf) if index in copies else leaf for index, leaf in pairs]
    arguments = [*saved.constants, *saved.initial, *saved.xs]
    # A tangent that nothing reads may have no forward mode: that of a `jax.custom_vjp`.
    carry = _reached(step, scan, linear.tangents)[scan.constants : scan.constants + scan.carry]
    active = tuple(any(flags) for flags in zip_longest(read, carry, fillvalue=False))
    scan = replace(scan, copied=())
    if scan.is_counted:
        # A derivative does not ask the condition again: rounding could make it stop elsewhere.
        arguments, wanted = [saved.initial[0] + saved.count, *arguments], (False, *wanted)
        step, scan = counted(step, scan)
    results = jointly([*arguments, *dots], step, scan, Tangents(wanted, active))
    made = zip(places(active), results[len(active) :], strict=True)
    return [dot for index, dot in made if read[index]]


linear_scan_p.def_abstract_eval(_types)
lowered_for_each_platform(linear_scan_p, _run)
ad.primitive_jvps[linear_scan_p] = lambda primals, dots, **params: jvp_rule(partial(_run, **params), primals, dots)


def _batch(
    axis: Any, operands: Sequence[Any], axes: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    results = list(over_axis(axis, partial(_run, **params), axes)(*operands))
    return results, [0] * len(results)


batch_by(linear_scan_p, _batch)


def _transpose(
    cotangents: Sequence[Any], *operands: Any, step: core.ClosedJaxpr, scan: Scan, linear: Linear
) -> list[Any]:
    leaves = as_arrays(operands)
    saved, dots = leaves[: linear.saved], leaves[linear.saved :]
    ct_results = [None if isinstance(leaf, ad.Zero) else leaf for leaf in cotangents]
    wanted, made = linear.tangents.operands, linear.tangents.results
    final, ys = split_list(replace_at([None] * len(made), places(made), ct_results), [scan.carry])
    ct_dots = cotangents_of_scan(step, scan, _saved(saved, step, scan, linear), wanted, final, ys)
    # The others are zeros: instantiated with these, or of tangents that no result with a cotangent depends on.
    pairs = zip(ct_dots, dots, strict=True)
    return [None] * linear.saved + [leaf if ad.is_undefined_primal(dot) else None for leaf, dot in pairs]


ad.primitive_transposes[linear_scan_p] = _transpose


def _drop_unused(used: Sequence[bool], *others: Any) -> tuple[list[bool], Any]:
    """Dead code elimination: a tangent that no result that is read depends on is no operand.

    A loop around the scan would carry it, and a cotangent of explicit zeros for it.
    """
    equation = others[-1]  # From jax 0.12 on the references that are read come before it.
    step, scan, linear = (equation.params[name] for name in ("step", "scan", "linear"))
    if not any(used):
        return [False] * len(equation.invars), None
    wanted, made = linear.tangents.operands, linear.tangents.results
    fewer = replace(linear.tangents, results=tuple(replace_at(made, places(made), used)))
    both = tuple(map(and_, wanted, _reached(step, scan, fewer)))
    stay = [*[True] * linear.saved, *compress(both, wanted)]
    return stay, equation.replace(
        invars=[*compress(equation.invars, stay)],
        outvars=[*compress(equation.outvars, used)],
        params={**equation.params, "linear": replace(linear, tangents=replace(fewer, operands=both))},
    )


partial_eval.dce_rules[linear_scan_p] = _drop_unused
