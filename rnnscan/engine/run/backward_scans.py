"""The backward pass as two scans like others. They are what JAX differentiates, in derivatives of second order.

One runs in the order of the scan and recomputes leaves of its carry. The other runs back: its carry are the cotangents
of the carry, and the sums over the steps.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan.engine.cache.by_jaxpr import cached_by_jaxpr
from rnnscan.engine.loops.batched_values import all_of
from rnnscan.engine.loops.stopping import reversed_steps
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.primitive.scan import Scan, bind, counted
from rnnscan.engine.run.saved import Saved
from rnnscan.engine.run.step_vjp import Cotangents, Vjp
from rnnscan.ir.leaves import split_list
from rnnscan.ir.trace import program_as_jaxpr


def run_backward_scans(vjp: Vjp, saved: Saved, ct_carry: Sequence[Any], ct_ys: Sequence[Any]) -> list[Any]:
    """The results of `run_backward`, by the two scans.

    Args:
        vjp: the vjp of a step.
        saved: the saved values.
        ct_carry: the cotangents of the final carry: those of `cotangents.active`.
        ct_ys: the cotangents of `cotangents.ys`.
    """
    scan, cotangents, residuals, zeros = vjp.scan, vjp.cotangents, vjp.residuals, vjp.zeros()
    count = None if saved.count is None else jnp.max(saved.count)
    types = tuple(map(jax.typeof, zeros)), () if count is None else (jax.typeof(count),)
    recompute, (step, back) = _backward_scans(vjp.step, scan, cotangents, residuals, *types)
    sources, *groups = saved.sources(residuals, reverse=scan.reverse)
    whole = lambda source: all_of(source, scan.length)  # noqa: E731
    before = {leaf: whole(source) for leaf, source in sources.items()}
    x_and_kept, new = ([*map(whole, group)] for group in groups)
    if count is not None:
        first = saved.initial[0]
        before[0] = first + lax.broadcasted_iota(first.dtype, (scan.length, *first.shape), 0)
    elif residuals.recomputed:
        starts = [saved.initial[leaf] for leaf in residuals.recomputed]
        known = [before[leaf] for leaf in sorted(before)]
        results = bind([*saved.constants, *starts, *known, *x_and_kept, *new], *recompute)
        before |= dict(zip(residuals.recomputed, results[len(starts) :], strict=True))
    xs = [*(before[leaf] for leaf in sorted(before)), *x_and_kept, *new, *ct_ys]
    if count is None:
        results = bind([*saved.constants, *ct_carry, *zeros, *xs], step, back)
    else:  # A scan stops after its last steps, so the first of this one are those that ran last.
        xs = [reversed_steps(stack, count) for stack in xs]
        none = lax.full_like(count, 0)
        _, *results = bind([count, *saved.constants, none, *ct_carry, *zeros, *xs], step, back)
    ct_initial, sums, ct_xs = split_list(results, [len(ct_carry), len(zeros)])
    if count is not None:
        ct_xs = [reversed_steps(stack, count) for stack in ct_xs]
    of_carry = [ct_initial[cotangents.active.index(leaf)] for leaf in cotangents.carry]
    copies = dict(scan.copied)
    of_constants = []
    for index, total in zip(cotangents.constants, sums, strict=True):
        rows = copies[index].rows if index in copies else None
        rounded = total if index in copies else total.astype(saved.constants[index].dtype)
        of_constants.append(rounded if rows is None else rows.shared(rounded))
    return [*of_constants, *of_carry, *ct_xs]


@cached_by_jaxpr
def _backward_scans(
    step: core.ClosedJaxpr,
    scan: Scan,
    cotangents: Cotangents,
    residuals: ResidualPlan,
    zeros: tuple[Any, ...],
    count: tuple[Any, ...],
) -> list[tuple[core.ClosedJaxpr, Scan]]:
    """The steps of both scans, and their other parameters.

    The y of the first is the recomputed leaves before each step, that of the second the cotangents of x. `zeros` are
    the types of the starts of sums, `count` that of the number of steps, if it counts.
    """
    vjp, recomputed, run = Vjp(step, scan, cotangents, residuals), residuals.recomputed, core.jaxpr_as_fun(step)
    operands = vjp.operands(step.in_avals)
    known = [*chain(operands.carry, operands.x, operands.kept, operands.restored)]
    sizes = [scan.constants, len(count), len(operands.ct_carry), len(zeros)]

    def transpose(*leaves: Any) -> list[Any]:
        constants, done, ct_carry, sums, x = split_list(leaves, sizes)
        terms = vjp.results(run(*constants, *x, *ct_carry))
        pairs = zip(sums, terms.constants, strict=True)
        new_sums = (total + term.astype(total.dtype) for total, term in pairs)
        return [*(number + 1 for number in done), *terms.carry, *new_sums, *terms.x]

    # The cotangents are no operands of what recomputes.
    program, size, others = vjp.program, len(recomputed), len(known) - len(recomputed)
    inputs = [*program.invariant[: scan.constants], *program.carry[:size], *program.known[:others]]
    outputs = [*program.new_carry[:size], *program.carry[:size]]
    closed = program_as_jaxpr(program.equations, inputs, outputs)
    options = replace(scan.options, offload=(), kept=())
    like = Scan(scan.constants, size, scan.length, scan.reverse, options)
    traced = jax.make_jaxpr(transpose)(*operands.constants, *count, *operands.ct_carry, *zeros, *known, *operands.ct_y)
    back = replace(like, carry=sum(sizes[1:]), reverse=not scan.reverse and not count)
    return [(closed, like), counted(traced, back) if count else (traced, back)]
