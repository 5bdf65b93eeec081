"""The backward pass as two scans like others. They are what JAX differentiates, in derivatives of second order.

One runs in the order of the scan and recomputes leaves of its carry. The other runs back: its carry are the cotangents
of the carry, and the sums over the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan.engine.analysis.leaves import split_list
from rnnscan.engine.cache.by_jaxpr import cached_by_jaxpr
from rnnscan.engine.loops.stopping import reversed_steps
from rnnscan.engine.loops.time_loop import before_each
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.primitive.dead_code import live_part
from rnnscan.engine.primitive.scan import Scan, bind, counted
from rnnscan.engine.run.backward import zeros_of_sums
from rnnscan.engine.run.forward import Saved, to_device
from rnnscan.engine.run.step_vjp import Cotangents


@dataclass(frozen=True)
class BackwardScans:
    """The two scans.

    Attributes:
        recompute: the step of the first and its parameters. Its y is the recomputed leaves before each step.
        transpose: the same of the second. Its y is the cotangents of x.
    """

    recompute: tuple[core.ClosedJaxpr, Scan]
    transpose: tuple[core.ClosedJaxpr, Scan]


def run_backward_scans(
    vjp: core.ClosedJaxpr,
    scan: Scan,
    cotangents: Cotangents,
    residuals: ResidualPlan,
    saved: Saved,
    ct_carry: Sequence[Any],
    ct_ys: Sequence[Any],
) -> list[Any]:
    """The results of `run_backward`, by the two scans.

    Args:
        vjp: the vjp of a step, from `step_vjp`.
        scan: the parameters of the scan.
        cotangents: the leaves that have a cotangent.
        residuals: what the scan keeps.
        saved: the saved values.
        ct_carry: the cotangents of the final carry: those of `cotangents.moving`.
        ct_ys: the cotangents of `cotangents.ys`.
    """
    zeros, kept = zeros_of_sums(vjp, cotangents, residuals, saved.constants), to_device(saved.kept, residuals.offloaded)
    count = None if saved.count is None else jnp.max(saved.count)
    types = tuple(map(jax.typeof, zeros)), () if count is None else (jax.typeof(count),)
    scans = _backward_scans(vjp, scan, cotangents, residuals, *types)
    before = {
        **saved.carries,
        **{
            leaf: before_each(saved.repeated[y], saved.initial[leaf], reverse=scan.reverse)
            for leaf, y in residuals.repeats.items()
        },
    }
    after = {leaf: before_each(before[leaf], last, reverse=not scan.reverse) for leaf, last in saved.final.items()}
    after |= {leaf: saved.repeated[y] for leaf, y in residuals.repeats.items()}
    new = [after[leaf] for leaf in residuals.restored]
    if count is not None:
        first = saved.initial[0]
        before[0] = first + lax.broadcasted_iota(first.dtype, (scan.length, *first.shape), 0)
    elif residuals.recomputed:
        starts = [saved.initial[leaf] for leaf in residuals.recomputed]
        known = [before[leaf] for leaf in sorted(before)]
        results = bind([*saved.constants, *starts, *known, *saved.xs, *kept, *new], *scans.recompute)
        before |= dict(zip(residuals.recomputed, results[len(starts) :], strict=True))
    xs = [*(before[leaf] for leaf in sorted(before)), *saved.xs, *kept, *new, *ct_ys]
    step, back = scans.transpose
    if count is None:
        results = bind([*saved.constants, *ct_carry, *zeros, *xs], step, back)
    else:  # A scan stops after its last steps, so the first of this one are those that ran last.
        xs = [reversed_steps(stack, count) for stack in xs]
        none = lax.full_like(count, 0)
        _, *results = bind([count, *saved.constants, none, *ct_carry, *zeros, *xs], step, back)
    ct_initial, sums, ct_xs = split_list(results, [len(ct_carry), len(zeros)])
    if count is not None:
        ct_xs = [reversed_steps(stack, count) for stack in ct_xs]
    of_carry = [ct_initial[cotangents.moving.index(leaf)] for leaf in cotangents.carry]
    copies = dict(scan.copied)
    of_constants = []
    for index, total in zip(cotangents.constants, sums, strict=True):
        rows = copies[index].rows if index in copies else None
        rounded = total if index in copies else total.astype(saved.constants[index].dtype)
        of_constants.append(rounded if rows is None else rows.spread(rounded / rows.parts))
    return [*of_constants, *of_carry, *ct_xs]


@cached_by_jaxpr
def _backward_scans(
    vjp: core.ClosedJaxpr,
    scan: Scan,
    cotangents: Cotangents,
    residuals: ResidualPlan,
    zeros: tuple[Any, ...],
    count: tuple[Any, ...],
) -> BackwardScans:
    """The two scans. `zeros` are the types of the starts of sums, `count` that of the number of steps, if it counts."""
    recomputed, moving, run = residuals.recomputed, len(cotangents.moving), core.jaxpr_as_fun(vjp)
    first_carry, first_x = scan.constants, scan.constants + len(residuals.carry)
    constants, others, of_ys, of_carry = split_list(
        vjp.in_avals,
        [scan.constants, len(vjp.in_avals) - scan.constants - len(cotangents.ys) - moving, len(cotangents.ys)],
    )

    def transpose(*leaves: Any) -> list[Any]:
        constant_leaves, done, ct_carry, sums, x = split_list(leaves, [len(constants), len(count), moving, len(zeros)])
        results = run(*constant_leaves, *x, *ct_carry)
        _, terms, new_ct, ct_x = split_list(results, [len(recomputed), len(zeros), moving])
        pairs = zip(sums, terms, strict=True)
        new_sums = (total + term.astype(total.dtype) for total, term in pairs)
        return [*(number + 1 for number in done), *new_ct, *new_sums, *ct_x]

    # The cotangents are no operands of what recomputes.
    live, _ = live_part(
        vjp,
        [index < len(recomputed) for index in range(len(vjp.out_avals))],
        [index < scan.constants + len(others) for index in range(len(vjp.in_avals))],
    )
    leaves = live.jaxpr.invars
    first = [leaves[first_carry + leaf] for leaf in recomputed]
    rest = [leaves[first_carry + leaf] for leaf in range(len(residuals.carry)) if leaf not in recomputed]
    jaxpr = live.jaxpr.replace(
        invars=[*leaves[:first_carry], *first, *rest, *leaves[first_x:]],
        outvars=[*live.jaxpr.outvars[: len(recomputed)], *first],
    )
    options = replace(scan.options, offload=(), kept=())
    like = Scan(scan.constants, len(recomputed), scan.length, scan.reverse, options)
    traced = jax.make_jaxpr(transpose)(*constants, *count, *of_carry, *zeros, *others, *of_ys)
    back = replace(like, carry=len(count) + moving + len(zeros), reverse=not scan.reverse and not count)
    return BackwardScans(
        (core.ClosedJaxpr(jaxpr, live.consts), like), counted(traced, back) if count else (traced, back)
    )
