"""The vjp of one step as a program: from the cotangents of its results to those of its arguments.

A carry leaf that no cotangent reaches in any step has none, as in `lax.scan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.zeros import zeros_of_value
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.restore import reading_kept
from rnnscan.engine.costs.heuristics import Heuristics, of_scan
from rnnscan.engine.loops.indexing import item_of
from rnnscan.engine.loops.stopping import hold
from rnnscan.engine.one_kernel.small_step import small_loop
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.primitive.dead_code import live_part
from rnnscan.engine.primitive.scan import Scan
from rnnscan.ir.leaves import places, replace_at, split_list
from rnnscan.ir.program import Program
from rnnscan.ir.trace import program_as_jaxpr, program_of, trace


@dataclass(frozen=True)
class Cotangents:
    """The leaves of a scan that have a cotangent.

    Attributes:
        constants: the constants whose cotangents are wanted and not zero.
        carry: the same carry leaves.
        active: the carry leaves that have a cotangent in some step.
        x: the input leaves whose cotangents are wanted and not zero.
        ys: the leaves of y that have a cotangent.
    """

    constants: tuple[int, ...]
    carry: tuple[int, ...]
    active: tuple[int, ...]
    x: tuple[int, ...]
    ys: tuple[int, ...]

    @staticmethod
    def of(step: FlatStep, wanted: Sequence[bool], final: Sequence[bool], ys: Sequence[bool]) -> "Cotangents":
        """Those that are wanted and nonzero.

        Args:
            step: the step.
            wanted: for each leaf of constants, carry and x whether its cotangent is wanted.
            final: for each leaf of the final carry whether it has a cotangent.
            ys: the same for y.
        """
        sizes = [len(step.constants), len(step.carry)]
        nonzero = step.with_cotangents(wanted, final, ys)
        both = [is_wanted and is_nonzero for is_wanted, is_nonzero in zip(wanted, nonzero, strict=True)]
        constants, carry, x = (tuple(places(group)) for group in split_list(both, sizes))
        return Cotangents(constants, carry, tuple(places(split_list(nonzero, sizes)[1])), x, tuple(places(ys)))

    def operands(self, scan: Scan) -> list[int]:
        """The places of the constants, carry leaves and x whose cotangents are made, among the operands of a scan."""
        first_x = scan.constants + scan.carry
        return [*self.constants, *(scan.constants + leaf for leaf in self.carry), *(first_x + leaf for leaf in self.x)]


class Operands(NamedTuple):
    """The operands of the vjp of a step, or what is known of each."""

    constants: list[Any]
    carry: list[Any]
    x: list[Any]
    kept: list[Any]
    restored: list[Any]
    ct_y: list[Any]
    ct_carry: list[Any]


class Results(NamedTuple):
    """The results of the vjp of a step, or what is known of each."""

    recomputed: list[Any]
    constants: list[Any]
    carry: list[Any]
    x: list[Any]


@dataclass(frozen=True)
class Vjp:
    """The vjp of a step: from the cotangents of its results to those of its arguments.

    Attributes:
        step: its jaxpr.
        scan: the parameters of the scan whose step it is the vjp of.
        cotangents: the leaves that have a cotangent.
        residuals: what the scan keeps.
    """

    step: core.ClosedJaxpr
    scan: Scan
    cotangents: Cotangents
    residuals: ResidualPlan

    def operands(self, leaves: Sequence[Any]) -> Operands:
        """Leaves by the kind of operand."""
        last = [len(self.residuals.kept), len(self.residuals.restored), len(self.cotangents.ys)]
        first = [self.scan.constants, self.scan.carry]
        x = len(self.step.in_avals) - sum(first) - sum(last) - len(self.cotangents.active)
        return Operands(*split_list(leaves, [*first, x, *last]))

    def results(self, leaves: Sequence[Any]) -> Results:
        """Leaves by the kind of result."""
        counts = map(len, (self.residuals.recomputed, self.cotangents.constants, self.cotangents.active))
        return Results(*split_list(leaves, [*counts]))

    @cached_property
    def changing(self) -> list[int]:
        """The cotangents of the carry that the step changes, among those of `Cotangents.active`.

        That of a sum it does not: with `c' = c + f(x)`, the cotangent of c is that of c'. As a carry it would be
        stacked at each step for the products that read it. It is the same at every step, so it need not be a carry.
        """
        before, after = self.operands(self.step.jaxpr.invars).ct_carry, self.results(self.step.jaxpr.outvars).carry
        return places([new is not old for old, new in zip(before, after, strict=True)])

    @cached_property
    def program(self) -> Program:
        """The vjp as a program.

        Its invariant inputs are the constants and the cotangents of the carry that stay the same. Its known inputs are
        the carry leaves that are not recomputed, x, the kept values, the new values of the restored carry leaves and
        the cotangents of y; its carry is the recomputed leaves and the other cotangents of the carry. It sums the
        cotangents of the constants, and stacks those of x.
        """
        program = program_of(self.step)
        operands, results = self.operands(program.known), self.results(program.stacked)
        recomputed = self.residuals.recomputed
        kept_carry = [leaf for index, leaf in enumerate(operands.carry) if index not in recomputed]
        fixed = [leaf for index, leaf in enumerate(operands.ct_carry) if index not in self.changing]
        return replace(
            program,
            invariant=(*operands.constants, *fixed),
            known=(*kept_carry, *operands.x, *operands.kept, *operands.restored, *operands.ct_y),
            carry=(
                *(operands.carry[index] for index in recomputed),
                *(operands.ct_carry[index] for index in self.changing),
            ),
            new_carry=(*results.recomputed, *(results.carry[index] for index in self.changing)),
            summed=tuple(results.constants),
            stacked=tuple(results.x),
        )

    def heuristics(self, choices: Heuristics) -> Heuristics:
        """The heuristics of the backward pass, from those of the platform."""
        options = self.scan.options
        is_small = small_loop(self.program, options.residuals, choices) is not None
        return of_scan(choices, options.parallel, options.whole, is_small=is_small)

    def zeros(self) -> list[Any]:
        """The starts of the sums of cotangents of constants: with rows where the sums have some."""
        terms = self.results(self.step.out_avals).constants
        return [zeros_of_value(aval.update(dtype=at_least_float32(aval.dtype))) for aval in terms]

    def of_running_rows(self, which: Sequence[Any]) -> core.ClosedJaxpr:
        """The step where some rows do not run: they keep their cotangents, and add nothing to sums over rows.

        It computes for them the step of a row that runs, with cotangents of zero. Their own values may have no finite
        derivative, and zero times infinity is NaN. Rows are the first axes of the carry, x and the kept values.

        Args:
            which: the types of two more inputs, which come after x: whether each row runs, and the number of a row that
                does.
        """
        run, types = core.jaxpr_as_fun(self.step), self.step.in_avals
        first = sum(map(len, self.operands(types)[:3]))

        def of_rows(*leaves: Any) -> list[Any]:
            before, (runs, source), after = split_list(leaves, [first, 2])
            operands = self.operands([*before, *after])

            def filled(leaf: Any) -> Any:
                rows = lax.reshape(leaf, (runs.size, *leaf.shape[runs.ndim :]))
                return hold(runs, leaf, jnp.broadcast_to(item_of(rows, source), leaf.shape))

            def without(leaf: Any) -> Any:
                return hold(runs, leaf, lax.full_like(leaf, 0))

            values = (map(filled, group) for group in (operands.carry, operands.x, operands.kept))
            cotangents = (map(without, group) for group in (operands.ct_y, operands.ct_carry))
            results = self.results(run(*operands.constants, *chain(*values), *operands.restored, *chain(*cotangents)))
            return [*results.recomputed, *results.constants, *hold(runs, results.carry, operands.ct_carry), *results.x]

        return jax.make_jaxpr(of_rows)(*types[:first], *which, *types[first:])


def step_vjp(plan: ScanPlan, cotangents: Cotangents) -> core.ClosedJaxpr:
    """The vjp of a step as a jaxpr.

    Its operands are the constants, carry, x, kept values, new values of the restored carry leaves, and the cotangents
    of y and of the carry. Its results are the new recomputed leaves, and the cotangents of constants, carry and x.
    """
    step, residuals = plan.step, plan.residuals
    restored = [step.new_carry[index] for index in residuals.restored]
    given = [*(step.y[index] for index in cotangents.ys), *(step.carry[index] for index in cotangents.active)]
    types = [
        *(atom.aval for atom in (*step.inputs, *step.kept, *restored)),
        *(atom.aval.to_tangent_aval() for atom in given),
    ]
    sizes = [len(step.inputs), len(step.kept), len(residuals.restored), len(cotangents.ys)]
    first = [len(step.constants), len(step.carry)]
    # Those of all carry leaves that have a cotangent in some step.
    differentiated = replace(cotangents, carry=cotangents.active).operands(plan.scan)

    def vjp(*leaves: Any) -> list[Any]:
        inputs, kept, known_new_carry, ct_y, ct_carry = split_list(leaves, sizes)
        known = dict(zip(restored, known_new_carry, strict=True)) | dict(zip(step.kept, kept, strict=True))

        def differentiable(some: list[Any]) -> tuple[list[Any], tuple[Any, Any]]:
            constants, carry, x = split_list(replace_at(inputs, differentiated, some), first)
            new_carry, y, computed_and_kept = step.differentiable(constants, carry, x, known)
            results = [*(new_carry[i] for i in cotangents.active), *(y[i] for i in cotangents.ys)]
            return results, ([new_carry[i] for i in residuals.recomputed], [*chain(*computed_and_kept)])

        arguments = [inputs[place] for place in differentiated]
        primals: list[Any] = []

        # `jax.vjp` would linearize each equation in a separate trace, which takes 1.5 times as long.
        def tangents(directions: list[Any]) -> list[Any]:
            _, of_results, of_trace = jax.jvp(differentiable, [arguments], [directions], has_aux=True)
            primals.extend(of_trace)  # They depend on no direction, so the trace around this one has them.
            return of_results

        (ct_arguments,) = jax.linear_transpose(tangents, arguments)([*ct_carry, *ct_y])
        new_recomputed, computed_and_kept = primals
        return [*new_recomputed, *ct_arguments, *computed_and_kept]

    program = trace(vjp, *types)
    counts = map(len, (residuals.recomputed, cotangents.constants, cotangents.active, cotangents.x))
    recomputed = {program.known[first[0] + index] for index in residuals.recomputed}
    as_before = {*program.known[: len(step.inputs)]} - recomputed
    program = reading_kept(program, (len(program.stacked) - sum(counts)) // 2, as_before)
    vjp_of_step = program_as_jaxpr(program.equations, program.known, program.stacked)
    # A scan within the step may not need to return its residuals again.
    return live_part(vjp_of_step, [True] * len(program.stacked), [True] * len(program.known))[0]
