"""Scans that stop by a condition, with the values that they save for the backward pass.

A scan is a `WhileScan`, or a `SegmentedWhileScan` around one. Its derivatives run as many steps as the scan did. They
never evaluate the condition, so that rounding cannot make them stop elsewhere.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan._util.step_wrappers import type_of_step
from rnnscan.engine.analysis.leaves import places, replace_at, split_list
from rnnscan.engine.loops.counted_loop import Blocks, counted_loop, scan_counted
from rnnscan.engine.loops.examples import hold
from rnnscan.engine.loops.flat_function import is_zero, jvp
from rnnscan.engine.loops.indexing import item_of, items_of
from rnnscan.engine.loops.linear_tangents import have_tangents, linear_tangents
from rnnscan.engine.loops.own_derivative import with_derivative
from rnnscan.engine.loops.sharded_rows import ShardedRows, sharded_rows
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.backward import cotangents_to_carry, run_backward, zero_sum
from rnnscan.engine.run.forward import Saved
from rnnscan.engine.run.runner import invariant_values
from rnnscan.engine.run.step_vjp import Cotangents, step_vjp
from rnnscan.engine.run.tangents import scan_jvp, step_by_step
from rnnscan.ir.program import Atom, Value, evaluate, read


# (arrays that it reads, carry) -> whether to run another step
CondFun: TypeAlias = Callable[[list[Any], list[Any]], Any]
# The rows, by constant that was spread over their parts.
Spread: TypeAlias = Mapping[int, ShardedRows]


class Stop(NamedTuple):
    """When a scan stops: after `bound` steps, or when its condition, which reads the arrays `read`, is false."""

    bound: Any
    read: list[Any]

    def continues(self, cond_fun: CondFun | None, done: Any, carry: list[Any]) -> Any:
        """Whether another step runs after `done` steps."""
        within = done < self.bound
        return within if cond_fun is None else within & cond_fun(self.read, carry)


class Arguments(NamedTuple):
    """The arguments of a scan."""

    constants: list[Any]
    carry: list[Any]
    xs: list[Any]


class Results(NamedTuple):
    """The number of steps that ran, the carry after them, and y, which is zero after them."""

    count: Any
    carry: list[Any]
    ys: list[Any]


@dataclass(frozen=True)
class WhileScan:
    """A scan that saves the values of each step that the rule of memory keeps.

    Attributes:
        plan: its plan, with the most steps for a length.
        prints: whether the step has `jax.debug` callbacks, which the split would leave out.
    """

    plan: ScanPlan
    prints: bool = False

    @property
    def length(self) -> int:
        """The most steps."""
        return self.plan.length

    def run(self, cond_fun: CondFun | None, stop: Stop, arguments: Arguments, *, save: bool) -> tuple[Results, Saved]:
        """Run it. Without `save` the saved values are empty."""
        step, program = self.plan.step, self.plan.returning(save=save)
        values: dict[Value, Any] = dict(zip(program.invariant, arguments.constants, strict=True))
        equations = program.equations
        if not self.prints:
            split = self.plan.forward(save=save)
            program, equations, values = split.program, split.varying, invariant_values([split], arguments.constants)

        def run_step(at: Any, runs: Any, count: Any, carry: list[Any]) -> tuple[Any, list[Any], list[Any]]:
            x = [item_of(leaf, at) for leaf in arguments.xs]
            known = {**values, **dict(zip([*step.carry, *step.x], [*carry, *x], strict=True))}
            evaluate(equations, known)
            new = [read(atom, known) for atom in program.stacked]
            new = hold(runs, new, jax.tree.map(jnp.zeros_like, new))
            carry = hold(runs, [read(atom, known) for atom in program.new_carry], carry)
            return count + runs.astype(count.dtype), carry, [leaf[None] for leaf in new]

        loop, types = TimeLoop(self.length, 1, reverse=False), map(_type, program.stacked)
        continues = partial(stop.continues, cond_fun)
        count, carry, stacks, _ = loop.run_while(
            run_step, continues, jnp.zeros_like(stop.bound), arguments.carry, types
        )
        ys, kept, carries = split_list(stacks, [step.y_size, len(step.kept) if save else 0])
        return Results(count, carry, ys), self.saved(arguments, kept, carries, count)

    def saved(self, arguments: Arguments, kept: list[Any], carries: list[Any], count: Any) -> Saved:
        """The saved values, from the named values to keep and the carries of every step."""
        return Saved(
            constants=arguments.constants,
            initial=arguments.carry,
            carries=dict(enumerate(carries)),
            final={},
            repeated={},
            starts={},
            xs=arguments.xs,
            kept=kept,
            count=count,
        )

    def vjp(self, saved: Saved, wanted: list[bool], carry: list[Any], ys: list[Any], spread: Spread) -> list[Any]:
        """The cotangents of the wanted arguments, from those of the carry and of ys; None for zeros."""
        flags = ([leaf is not None for leaf in leaves] for leaves in (carry, ys))
        cotangents = Cotangents.of(self.plan.step, wanted, *flags)
        back = self.plan, step_vjp(self.plan, cotangents), cotangents, saved
        groups = run_backward(*back, *cotangents_to_carry(cotangents, saved, carry, ys), spread=spread)
        return cotangents.of_wanted(wanted, [len(saved.constants), len(saved.initial)], *groups)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SavedStarts:
    """The saved values of a segmented scan: arguments, the carry before each segment, the number of steps that ran."""

    arguments: Arguments
    starts: list[Any]
    count: Any


@dataclass(frozen=True)
class SegmentedWhileScan:
    """A scan that saves the carry before each segment, and runs a segment again on the backward pass.

    Attributes:
        inner: the scan of one segment.
        segments: the most segments.
    """

    inner: "WhileScan | SegmentedWhileScan"
    segments: int

    @property
    def plan(self) -> ScanPlan:
        """The plan of the innermost scan."""
        return self.inner.plan

    @property
    def length(self) -> int:
        """The most steps."""
        return self.inner.length * self.segments

    def run(
        self, cond_fun: CondFun | None, stop: Stop, arguments: Arguments, *, save: bool
    ) -> tuple[Results, SavedStarts]:
        """Run it. Without `save` no starts are saved."""
        size = self.inner.length

        def run_segment(number: Any, runs: Any, count: Any, carry: list[Any]) -> tuple[Any, list[Any], list[Any]]:
            xs = [items_of(leaf, number * size, size) for leaf in arguments.xs]
            inner_stop = stop._replace(bound=jnp.where(runs, jnp.minimum(stop.bound - count, size), 0))
            inner = self.inner.run(cond_fun, inner_stop, Arguments(arguments.constants, carry, xs), save=False)[0]
            return count + inner.count, inner.carry, inner.ys

        loop, types = TimeLoop(self.length, size, reverse=False), map(_type, self.plan.step.y)
        continues, none = partial(stop.continues, cond_fun), jnp.zeros_like(stop.bound)
        count, carry, ys, starts = loop.run_while(run_segment, continues, none, arguments.carry, types, save=save)
        return Results(count, carry, ys), SavedStarts(arguments, starts, count)

    def saved(self, arguments: Arguments, kept: list[Any], carries: list[Any], count: Any) -> SavedStarts:
        """The saved values, from the named values to keep and the carries of every step."""
        return SavedStarts(arguments, [leaf[:: self.inner.length] for leaf in carries], count)

    def vjp(self, saved: SavedStarts, wanted: list[bool], carry: list[Any], ys: list[Any], spread: Spread) -> list[Any]:
        """The same, segment by segment."""
        constants, initial, xs = saved.arguments
        size = self.inner.length
        of_constants, of_carry, of_xs = (
            [index for index, is_wanted in enumerate(group) if is_wanted]
            for group in split_list(wanted, [len(constants), len(initial)])
        )
        final, nonzero_ys = ([leaf is not None for leaf in leaves] for leaves in (carry, ys))
        nonzero = self.plan.step.with_cotangents(wanted, final, nonzero_ys)
        moving = places(split_list(nonzero, [len(constants), len(initial)])[1])
        # Each segment has gradients of the constants. Over rows their total is taken after all segments.
        of_step = [*initial, *map(type_of_step, xs)]
        by_rows = spread or _spread(constants, of_step, of_constants, self.plan.step.constants_over_units)
        run = differentiable(self.inner, None, by_rows)
        summed = [index for index in of_constants if index not in by_rows]
        copies = [rows.spread(constants[index]) for index, rows in by_rows.items()]

        def iteration(carried: list[Any], steps: list[Any], once: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
            ct_carry, sums, sums_by_rows = split_list(carried, [len(moving), len(summed)])
            steps, ct_ys = split_list(steps, [len(xs)])
            (count,), before = split_list(once, [1])

            def segment(some_constants: Any, copies: Any, some_carry: Any, some_xs: Any) -> tuple[list[Any], list[Any]]:
                arguments = Arguments(
                    replace_at(constants, summed, some_constants),
                    replace_at(before, moving, some_carry),
                    replace_at(steps, of_xs, some_xs),
                )
                results = run(Stop(count, []), arguments, copies)
                return [results.carry[index] for index in moving], [results.ys[index] for index in places(nonzero_ys)]

            operands = (
                [constants[index] for index in summed],
                copies,
                [before[index] for index in moving],
                [steps[index] for index in of_xs],
            )
            new_sums, new_by_rows, ct_carry, ct_xs = jax.vjp(segment, *operands)[1]((ct_carry, ct_ys))
            sums = [total + leaf for total, leaf in zip(sums, new_sums, strict=True)]
            pairs = zip(by_rows.values(), sums_by_rows, new_by_rows, strict=True)
            return [*ct_carry, *sums, *(rows.add(total, leaf) for rows, total, leaf in pairs)], ct_xs, []

        counts = jnp.clip(saved.count - size * jnp.arange(self.segments, dtype=saved.count.dtype), 0, size)
        carried, ct_xs, _ = counted_loop(
            iteration,
            [
                *(jnp.zeros_like(initial[index]) if carry[index] is None else carry[index] for index in moving),
                *(zero_sum(constants[index]) for index in summed),
                *(rows.zeros(zero_sum(constants[index])) for index, rows in by_rows.items()),
            ],
            [*xs, *(ys[index] for index in places(nonzero_ys))],
            [counts, *saved.starts],
            count=-(-saved.count // size),
            limit=self.segments,
            blocks=Blocks(self.length, size),
            back=True,
        )
        ct_carry, sums, sums_by_rows = split_list(carried, [len(moving), len(summed)])
        of_each = dict(zip([*summed, *by_rows], [*sums, *sums_by_rows], strict=True))
        if not spread:
            of_each |= {index: rows.total(of_each[index], constants[index]) for index, rows in by_rows.items()}
        totals = [of_each[index].astype(constants[index].dtype) for index in of_constants]
        ct_initial = dict(zip(moving, ct_carry, strict=True))
        return [*totals, *map(ct_initial.get, of_carry), *ct_xs]


def _spread(constants: list[Any], of_step: list[Any], wanted: list[int], over_units: Container[int]) -> Spread:
    """The wanted constants whose gradients are sums over sharded rows."""
    rows = sharded_rows(of_step, constants)
    if rows is None:
        return {}
    summed = rows.summed_for(constants, over_units)
    return {index: rows for index in wanted if index in summed}


def differentiable(
    scan: WhileScan | SegmentedWhileScan, cond_fun: CondFun | None, spread: Spread = MappingProxyType({})
) -> Callable[[Stop, Arguments, list[Any]], Results]:
    """The scan with its derivatives: `(stop, arguments, copies) -> results`.

    Args:
        scan: the scan.
        cond_fun: its condition; None: it runs `stop.bound` steps.
        spread: the constants that were spread over parts of the rows. They have their derivatives through the copies,
            which are not read.
    """

    def run(stop: Stop, arguments: Arguments, copies: list[Any]) -> Results:
        return scan.run(cond_fun, stop, arguments, save=False)[0]

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        results, saved = _saving(scan, cond_fun)(*primals[:2])
        # The tangents of the bound and of the arrays that the condition reads change nothing.
        _, moved, of_copies = tangents
        leaves = jax.tree.leaves(
            moved._replace(constants=replace_at(moved.constants, [*spread], of_copies)), is_leaf=is_zero
        )
        moving_results = [False, *moving(have_tangents(leaves))]  # The count has no tangent.
        rule = partial(jvp_rule, moving_results[1:])
        return results, linear_tangents(saved, results, leaves, rule, vjp_rule, moving_results, with_cotangents)

    def moving(wanted: list[bool]) -> list[bool]:
        leaves = scan.plan.step.moving(wanted)
        return [*leaves.carry, *leaves.ys]

    def with_cotangents(wanted: list[bool], results: list[bool]) -> list[bool]:
        return scan.plan.step.with_cotangents(wanted, *split_list(results[1:], [len(scan.plan.step.carry)]))

    # JAX caches both, so they must not hold an array of this trace.
    def jvp_rule(moving_results: list[bool], saved: Any, wanted: list[bool], tangents: list[Any]) -> list[Any]:
        pairs = zip(places(wanted), tangents, strict=True)
        tangents = [spread[index].mean(leaf) if index in spread else leaf for index, leaf in pairs]
        counted = partial(scan_counted, count=saved.count, limit=scan.length)
        return scan_jvp(step_by_step(scan.plan.step, counted), saved.arguments, wanted, tangents, moving_results)

    def vjp_rule(saved: Any, wanted: list[bool], cotangents: list[Any]) -> list[Any]:
        _, carry, ys = split_list(cotangents, [1, len(scan.plan.step.carry)])
        return scan.vjp(saved, wanted, carry, ys, spread)

    return with_derivative(run, differentiate)


def _saving(
    scan: WhileScan | SegmentedWhileScan, cond_fun: CondFun | None
) -> Callable[[Stop, Arguments], tuple[Results, Any]]:
    """The scan and its saved values, with derivatives of both, for gradients of gradients.

    These come from a scan over all steps, whose y has the values to save too. It saves the carry before every step.
    """

    def run(stop: Stop, arguments: Arguments) -> tuple[Results, Any]:
        return scan.run(cond_fun, stop, arguments, save=True)

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        stop, arguments = primals
        results, saved = scan.run(cond_fun, stop, arguments, save=True)
        counted = Stop(results.count, [])
        every_step = WhileScan(replace(scan.plan, step=scan.plan.step.returning_saved(), length=scan.length))

        def run_all(arguments: Arguments) -> tuple[Results, Any]:
            all_results = differentiable(every_step, None)(counted, arguments, [])
            ys, kept, carries = split_list(all_results.ys, [scan.plan.step.y_size, len(scan.plan.step.kept)])
            return Results(all_results.count, all_results.carry, ys), scan.saved(
                arguments, kept, carries, all_results.count
            )

        return (results, saved), jvp(run_all, (arguments,), (tangents[1],))[1]

    return with_derivative(run, differentiate)


def _type(atom: Atom) -> Any:
    return atom.aval if isinstance(atom, Value) else jax.typeof(atom.value)
