"""The backward pass of a scan: a scan the other way round, over the vjp of a step.

    rnnscan_cotangent_scan[step, ...](*saved, *ct_carry, *ct_ys) -> (*ct_constants, *ct_carry, *ct_xs)

`step` is the vjp of a step, from `step_vjp`. The cotangents of constants are sums over the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import ad, partial_eval

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.messages import is_key
from rnnscan._util.step_wrappers import type_of_step
from rnnscan._util.zeros import zeros_of_type, zeros_of_value
from rnnscan.engine.cache.by_jaxpr import cached_by_jaxpr
from rnnscan.engine.costs.heuristics import for_platform
from rnnscan.engine.plan.bound import scan_plan
from rnnscan.engine.primitive.batching import moved, on_rows
from rnnscan.engine.primitive.dead_code import live_part
from rnnscan.engine.primitive.scan import Scan, ScanPrimitive, lowered_for_each_platform, stacked
from rnnscan.engine.run.backward import run_backward
from rnnscan.engine.run.backward_scans import run_backward_scans
from rnnscan.engine.run.saved import Reads, Saved
from rnnscan.engine.run.step_vjp import Cotangents, Vjp, step_vjp
from rnnscan.engine.units.mesh import sharding_units
from rnnscan.ir.leaves import leaves_at, places, split_list
from rnnscan.ir.rules import batch_by, jvp_rule, over_axis, transpose_rule


cotangent_scan_p = ScanPrimitive("rnnscan_cotangent_scan")


@dataclass(frozen=True)
class CotangentScan(Vjp):
    """A backward pass. Its attributes are the parameters of the equation.

    Attributes:
        read: for each leaf of `Saved` whether the backward pass reads it. Only these are operands.
    """

    read: tuple[bool, ...] = ()

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the equation."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def bind(self, operands: Sequence[Any]) -> list[Any]:
        """The results, as an equation of the current trace."""
        return list(cotangent_scan_p.bind(*operands, **self.params))

    def chosen(self, saved: Saved, ct_carry: Sequence[Any], ct_ys: Sequence[Any]) -> list[Any]:
        """The operands, of the saved values and the cotangents of the carry and of ys. `arrays` is the inverse."""
        pairs = zip(jax.tree.leaves(saved), self.read, strict=True)
        return [*(leaf for leaf, is_read in pairs if is_read), *ct_carry, *ct_ys]

    @property
    def reads(self) -> Saved:
        """What a step reads from each saved array."""
        return Saved.reads(self.residuals, self.scan, len(self.operands(self.step.in_avals).x))

    def reading(self, step: core.ClosedJaxpr) -> "CotangentScan":
        """The same with another step. What it does not read is no operand.

        Constants, the initial carry, keys and the count are read in any case.
        """
        used = live_part(step, [True] * len(step.out_avals), [False] * len(step.in_avals))[1]
        always, whole = self.scan.constants + self.scan.carry, replace(self, step=step)
        needed = [is_used or is_key(aval) for is_used, aval in zip(used, step.in_avals, strict=True)]
        read = tuple(
            number < always or not reads.operands or any(needed[place] for place in reads.operands)
            for number, reads in enumerate(jax.tree.leaves(whole.reads))
        )
        return replace(whole, read=read)

    def arrays(self, operands: Sequence[Any]) -> tuple[Saved, list[Any], list[Any]]:
        """The saved values, and the cotangents of the carry and of ys. Zeros stand for what nothing reads."""
        given, ct_carry, ct_ys = split_list(operands, [sum(self.read), len(self.cotangents.active)])
        every, structure = jax.tree.flatten(self.reads)
        stored = iter(given)
        leaves = [
            next(stored) if is_read else self._zeros(reads) for is_read, reads in zip(self.read, every, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves), ct_carry, ct_ys

    def _zeros(self, reads: Reads) -> Any:
        aval = self.step.in_avals[reads.operands[0]]
        return zeros_of_value(aval) if reads.steps is None else zeros_of_type(aval, reads.steps)


def cotangents_of_scan(
    step: core.ClosedJaxpr,
    scan: Scan,
    saved: Saved,
    wanted: Sequence[bool],
    final: Sequence[Any],
    ys: Sequence[Any],
) -> list[Any]:
    """The cotangents of the wanted constants, leaves of the initial carry and xs; None for zeros.

    Args:
        step: the step of the scan.
        scan: its other parameters.
        saved: the values that it has saved.
        wanted: for each leaf of constants, carry and xs whether its cotangent is wanted.
        final: cotangents of the final carry; None where one is zero.
        ys: cotangents of ys; None where one is zero.
    """
    of_step = scan_plan(step, scan).for_derivatives.step
    flags = ([leaf is not None for leaf in leaves] for leaves in (final, ys))
    cotangents = Cotangents.of(of_step, wanted, *flags)
    which = _which_run(saved.count, scan.length) if saved.count is not None and saved.count.ndim else []
    saved = replace(saved, xs=[*saved.xs, *which])
    vjp = _vjp(step, scan, cotangents, tuple(map(type_of_step, which)))
    # Zeros come from the leaves that they are cotangents of: under `shard_map` they must vary over the same axes.
    pairs_of_carry = ((final[index], saved.initial[index]) for index in cotangents.active)
    ct_carry = [lax.full_like(like, 0) if leaf is None else leaf for leaf, like in pairs_of_carry]
    ct_ys = [ys[index] for index in cotangents.ys]
    results = vjp.bind(vjp.chosen(saved, ct_carry, ct_ys))
    return leaves_at(places(wanted), cotangents.operands(scan), results)


@cached_by_jaxpr
def _vjp(step: core.ClosedJaxpr, scan: Scan, cotangents: Cotangents, which: tuple[Any, ...]) -> CotangentScan:
    """The backward pass. `which`: the types of a step of `_which_run`, if each row has its own number of steps."""
    plan = scan_plan(step, scan).for_derivatives
    vjp = CotangentScan(step_vjp(plan, cotangents), scan, cotangents, plan.residuals)
    return vjp.reading(vjp.of_running_rows(which) if which else vjp.step)


def _which_run(count: Any, length: int) -> list[Any]:
    """At each step, from the numbers of steps of rows: whether each row runs, and the number of a row that does."""
    steps = lax.broadcasted_iota(count.dtype, (length, *count.shape), 0)
    longest = jnp.argmax(count.reshape(-1)).astype(jnp.int32)
    return [steps < count[None], jnp.broadcast_to(longest, (length,))]


def _run(*operands: Any, platform: str | None = None, **params: Any) -> list[Any]:
    vjp = CotangentScan(**params)
    options = vjp.scan.options
    choices = options.choices or for_platform(platform or options.platform)
    with sharding_units(options.units):
        results = run_backward(vjp, vjp.heuristics(choices), *vjp.arrays(operands))
    return [leaf for leaves in results for leaf in leaves]


def _types(*types: Any, **params: Any) -> tuple[list[Any], Any]:
    vjp = CotangentScan(**params)
    scan, cotangents, effects = vjp.scan, vjp.cotangents, vjp.step.effects
    if any(copy.rows is not None for _, copy in scan.copied):
        return list(cotangent_scan_p.program(types, params).out_avals), effects
    results, wide = vjp.results(vjp.step.out_avals), {index for index, _ in scan.copied}
    pairs = zip(cotangents.constants, results.constants, strict=True)
    of_constants = [aval.update(dtype=at_least_float32(aval.dtype)) if i in wide else aval for i, aval in pairs]
    of_carry = [results.carry[cotangents.active.index(index)] for index in cotangents.carry]
    return [*of_constants, *of_carry, *(stacked(aval, scan.length) for aval in results.x)], effects


cotangent_scan_p.def_effectful_abstract_eval(_types)
lowered_for_each_platform(cotangent_scan_p, _run)


def _by_scans(*operands: Any, **params: Any) -> list[Any]:
    vjp = CotangentScan(**params)
    return run_backward_scans(vjp, *vjp.arrays(operands))


ad.primitive_jvps[cotangent_scan_p] = lambda primals, dots, **params: jvp_rule(
    partial(_by_scans, **params), primals, dots, partial(cotangent_scan_p.bind, **params)
)
ad.primitive_transposes[cotangent_scan_p] = lambda cotangents, *operands, **params: transpose_rule(
    partial(_by_scans, **params), cotangents, operands
)


def _batch(
    axis: Any, operands: Sequence[Any], axes: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    """The vjp of a step on all rows."""
    vjp = CotangentScan(**params)
    step, scan, cotangents = vjp.step, vjp.scan, vjp.cotangents
    of_step = vjp.operands(range(len(step.in_avals)))
    every = [*compress(jax.tree.leaves(vjp.reads), vjp.read), *(Reads([place]) for place in of_step.ct_carry)]
    every += [Reads([place], scan.length) for place in of_step.ct_y]
    mapped = {place for at, reads in zip(axes, every, strict=True) if at is not None for place in reads.operands}
    # A step reads one array in several places, and a leaf from several arrays. Rows in one of them are in all, also in
    # zeros that stand for an array.
    arrays = [{*reads.operands} for reads in jax.tree.leaves(vjp.reads)]
    while more := {place for places in arrays if not mapped.isdisjoint(places) for place in places} - mapped:
        mapped |= more
    flags = [place in mapped for place in range(len(step.in_avals))]
    # Results that become operands of the next step: recomputed leaves, and the cotangents of the carry.
    new = vjp.results(range(len(step.out_avals)))
    feedback = [*zip(new.recomputed, (of_step.carry[leaf] for leaf in vjp.residuals.recomputed), strict=True)]
    feedback += [*zip(new.carry, of_step.ct_carry, strict=True)]
    # Rows that have each their own number of steps have their own values at each step.
    own = any(at is not None and not reads.operands for at, reads in zip(axes, every, strict=True))
    if own:
        flags[scan.constants :] = [True] * (len(flags) - scan.constants)
    rows = on_rows(step, axis, flags, feedback, all_results=own)
    are_mapped = [any(rows.operands[i] for i in reads.operands) if reads.operands else own for reads in every]
    operands = [
        moved(leaf, at, 0 if reads.steps is None else 1, axis.size, is_mapped=is_mapped)
        for leaf, at, reads, is_mapped in zip(operands, axes, every, are_mapped, strict=True)
    ]
    # A total for each part of the rows of a mesh is not one for each part of these rows.
    whole = tuple((index, replace(copy, rows=None)) for index, copy in scan.copied)
    vjp = replace(vjp, step=rows.step, scan=replace(scan, copied=whole))
    if own:
        saved, *others = vjp.arrays(operands)
        which = _which_run(jnp.max(saved.count, range(1, saved.count.ndim)), scan.length)
        vjp = vjp.reading(vjp.of_running_rows([*map(type_of_step, which)]))
        operands = vjp.chosen(replace(saved, xs=[*saved.xs, *which]), *others)
    have_rows = vjp.results(rows.results)
    of_initial = [have_rows.carry[cotangents.active.index(index)] for index in cotangents.carry]
    out_axes = [0 if has_rows else None for has_rows in (*have_rows.constants, *of_initial)]
    results, copies = vjp.bind(operands), dict(scan.copied)
    for place, index in enumerate(cotangents.constants):
        parts = copies[index].rows if index in copies else None
        if parts is not None:
            shared = parts.shared if out_axes[place] is None else over_axis(axis, parts.shared, [0])
            results[place] = shared(results[place])
    return results, [*out_axes, *(1 if has_rows else None for has_rows in have_rows.x)]


batch_by(cotangent_scan_p, _batch)


def _drop_unused(used: Sequence[bool], *others: Any) -> tuple[list[bool], Any]:
    """Dead code elimination: no sum and no stack is made that nothing reads, and nothing saved that only these need."""
    equation = others[-1]  # From jax 0.12 on the references that are read come before it.
    if not any(used):
        return [False] * len(equation.invars), None
    vjp = CotangentScan(**equation.params)
    step, cotangents = vjp.step, vjp.cotangents
    of_constants, of_carry, of_xs = split_list(used, [len(cotangents.constants), len(cotangents.carry)])
    always = [True] * len(vjp.residuals.recomputed), [True] * len(cotangents.active)
    live, _ = live_part(step, [*always[0], *of_constants, *always[1], *of_xs], [True] * len(step.in_avals))
    chosen = [(cotangents.constants, of_constants), (cotangents.carry, of_carry), (cotangents.x, of_xs)]
    constants, carry, x = (tuple(compress(*pair)) for pair in chosen)
    fewer = replace(vjp, cotangents=replace(cotangents, constants=constants, carry=carry, x=x)).reading(live)
    stay = [fewer.read[index] for index in places(vjp.read)]
    flags = [*stay, *[True] * (len(equation.invars) - len(stay))]
    return flags, equation.replace(
        invars=[*compress(equation.invars, flags)],
        outvars=[*compress(equation.outvars, used)],
        effects=live.effects,
        params=fewer.params,
    )


partial_eval.dce_rules[cotangent_scan_p] = _drop_unused
