"""The vjp of one step as a program: from the cotangents of its results to those of its arguments.

A carry leaf that no cotangent reaches in any step has none, as in `lax.scan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.leaves import leaves_at, places, replace_at, split_list
from rnnscan.engine.analysis.restore import reading_kept
from rnnscan.engine.loops.indexing import item_of
from rnnscan.engine.loops.stopping import hold
from rnnscan.engine.plan.residuals import ResidualPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.ir.program import Program
from rnnscan.ir.trace import program_as_jaxpr, program_of, trace


@dataclass(frozen=True)
class Cotangents:
    """The leaves of a scan that have a cotangent.

    Attributes:
        constants: the constants whose cotangents are wanted and not zero.
        carry: the same carry leaves.
        moving: the carry leaves that have a cotangent in some step.
        x: the input leaves whose cotangents are wanted and not zero.
        ys: the leaves of y that have a cotangent.
    """

    constants: tuple[int, ...]
    carry: tuple[int, ...]
    moving: tuple[int, ...]
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

    def of_wanted(self, wanted: Sequence[bool], sizes: Sequence[int], *cotangents: Sequence[Any]) -> list[Any]:
        """The cotangents of all wanted leaves, None for zeros, from those of `constants`, `carry` and `x`.

        Args:
            wanted: for each leaf of constants, carry and x whether its cotangent is wanted.
            sizes: the number of constants, and of leaves of the carry.
            cotangents: those of `constants`, `carry` and `x`.
        """
        groups = zip(split_list(wanted, sizes), (self.constants, self.carry, self.x), cotangents, strict=True)
        return [leaf for flags, positions, leaves in groups for leaf in leaves_at(places(flags), positions, leaves)]


def step_vjp(plan: ScanPlan, cotangents: Cotangents) -> core.ClosedJaxpr:
    """The vjp of a step as a jaxpr.

    Its operands are the constants, carry, x, kept values, new values of the restored carry leaves, and the cotangents
    of y and of the carry. Its results are the new recomputed leaves, and the cotangents of constants, carry and x.
    """
    step, residuals = plan.step, plan.residuals
    restored = [step.new_carry[index] for index in residuals.restored]
    ct_ys = [step.y[index] for index in cotangents.ys]
    ct_carry = [step.carry[index] for index in cotangents.moving]
    groups = (step.constants, step.carry, step.x, step.kept, restored, ct_ys, ct_carry)
    types = [atom.aval for group in groups[:5] for atom in group]
    types += [atom.aval.to_tangent_aval() for group in groups[5:] for atom in group]
    sizes = [*map(len, groups)][:-1]

    def vjp(*leaves: Any) -> list[Any]:
        constants, carry, x, kept, known_new_carry, ct_y, ct_carry = split_list(leaves, sizes)

        def differentiable(some_constants: Any, some_carry: Any, some_x: Any) -> tuple[list[Any], tuple[Any, Any]]:
            new_carry, y, computed_and_kept = step.restored(
                replace_at(constants, cotangents.constants, some_constants),
                replace_at(carry, cotangents.moving, some_carry),
                replace_at(x, cotangents.x, some_x),
                kept,
                dict(zip(residuals.restored, known_new_carry, strict=True)),
            )
            differentiated = [*(new_carry[i] for i in cotangents.moving), *(y[i] for i in cotangents.ys)]
            return differentiated, ([new_carry[i] for i in residuals.recomputed], [*chain(*computed_and_kept)])

        arguments = (
            [constants[index] for index in cotangents.constants],
            [carry[index] for index in cotangents.moving],
            [x[index] for index in cotangents.x],
        )
        primals: list[Any] = []

        # `jax.vjp` would linearize each equation in a separate trace, which takes 1.5 times as long.
        def tangents(*directions: Any) -> list[Any]:
            _, of_results, of_trace = jax.jvp(differentiable, arguments, directions, has_aux=True)
            primals.extend(of_trace)  # They depend on no direction, so the trace around this one has them.
            return of_results

        ct_arguments = jax.linear_transpose(tangents, *arguments)([*ct_carry, *ct_y])
        new_recomputed, computed_and_kept = primals
        return [*new_recomputed, *jax.tree.leaves(ct_arguments), *computed_and_kept]

    program = trace(vjp, *types)
    counts = map(len, (residuals.recomputed, cotangents.constants, cotangents.moving, cotangents.x))
    program = reading_kept(program, (len(program.stacked) - sum(counts)) // 2)
    return program_as_jaxpr(program.equations, program.known, program.stacked)


def vjp_program(
    vjp: core.ClosedJaxpr, cotangents: Cotangents, residuals: ResidualPlan, sizes: Sequence[int]
) -> tuple[Program, list[int]]:
    """The vjp of a step as a program, and which cotangents of the carry it changes, among those of `moving`.

    The cotangent of a sum it does not: with `c' = c + f(x)`, the cotangent of c is that of c'. As a carry it would be
    stacked at each step for the products that read it. It is the same at every step, so it need not be a carry.

    Its invariant inputs are the constants and these cotangents. Its known inputs are the carry leaves that are not
    recomputed, x, the kept values, the new values of the restored carry leaves and the cotangents of y; its carry is
    the recomputed leaves and the other cotangents of the carry. It sums the cotangents of the constants, and stacks
    those of x.

    Args:
        vjp: the vjp.
        cotangents: the leaves that have a cotangent.
        residuals: what the scan keeps.
        sizes: the numbers of constants and of leaves of x.
    """
    program, (constants, x) = program_of(vjp), sizes
    groups = [constants, len(residuals.carry), x, len(residuals.kept), len(residuals.restored), len(cotangents.ys)]
    inputs = split_list(program.known, groups)
    counts = [len(residuals.recomputed), len(cotangents.constants), len(cotangents.moving)]
    new_recomputed, summed, new_ct, ct_x = split_list(program.stacked, counts)
    *other_inputs, ct_carry = inputs[2:]
    recomputed = [inputs[1][index] for index in residuals.recomputed]
    kept_carry = [leaf for index, leaf in enumerate(inputs[1]) if index not in residuals.recomputed]
    changes = [new is not leaf for leaf, new in zip(ct_carry, new_ct, strict=True)]
    program = replace(
        program,
        invariant=(*inputs[0], *(leaf for leaf, is_new in zip(ct_carry, changes, strict=True) if not is_new)),
        known=(*kept_carry, *chain(*other_inputs)),
        carry=(*recomputed, *compress(ct_carry, changes)),
        new_carry=(*new_recomputed, *compress(new_ct, changes)),
        summed=tuple(summed),
        stacked=tuple(ct_x),
    )
    return program, places(changes)


def of_running_rows(
    vjp: core.ClosedJaxpr, sizes: Sequence[int], results: Sequence[int], inputs: Sequence[Any]
) -> core.ClosedJaxpr:
    """The vjp of a step of which some rows do not run: they keep their cotangents, and add nothing to sums over rows.

    It computes for them the step of a row that runs, with cotangents of zero. Their own values may have no finite
    derivative, and zero times infinity is NaN.

    Args:
        vjp: the vjp, with the rows along the first axes of the carry, x and the kept values.
        sizes: the numbers of constants, carry leaves, x, kept values, new leaves and cotangents of y.
        results: the numbers of recomputed leaves, cotangents of constants and cotangents of the carry.
        inputs: the types of two more inputs, which come after x: whether each row runs, and the number of a row that
            does.
    """
    run, (constants, carry, x, *others), after = core.jaxpr_as_fun(vjp), sizes, sum(sizes[:3])

    def of_rows(*leaves: Any) -> list[Any]:
        fixed, *rest = split_list(leaves, [constants, carry, x, 1, 1, *others])
        states, inputs, (runs,), (source,), kept, new, ct_ys, ct_carry = rest

        def filled(leaf: Any) -> Any:
            rows = lax.reshape(leaf, (runs.size, *leaf.shape[runs.ndim :]))
            return hold(runs, leaf, jnp.broadcast_to(item_of(rows, source), leaf.shape))

        def without(leaf: Any) -> Any:
            return hold(runs, leaf, lax.full_like(leaf, 0))

        groups = fixed, map(filled, states), map(filled, inputs), map(filled, kept), new
        made = run(*chain(*groups, map(without, ct_ys), map(without, ct_carry)))
        recomputed, sums, new_ct, ct_x = split_list(made, results)
        return [*recomputed, *sums, *hold(runs, new_ct, ct_carry), *ct_x]

    return jax.make_jaxpr(of_rows)(*vjp.in_avals[:after], *inputs, *vjp.in_avals[after:])
