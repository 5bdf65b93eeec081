"""The vjp of one step as a program: from the cotangents of its results to those of its arguments.

A carry leaf that no cotangent reaches in any step has none, as in `lax.scan`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import jax

from rnnscan.engine.analysis.leaves import leaves_at, places, replace_at, split_list
from rnnscan.engine.analysis.restore import reading_kept
from rnnscan.engine.analysis.unchanged import Unchanged
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.ir.program import Program
from rnnscan.ir.trace import trace


class StepVjp:
    """The vjp of one step, for the cotangents that are wanted and those that are nonzero.

    Args:
        plan: how the scan runs.
        wanted: for each leaf of constants, carry and x whether its cotangent is wanted.
        final: for each leaf of the final carry whether it has a cotangent.
        ys: the same for y.

    Attributes:
        constants: the constants whose cotangents are wanted and not zero.
        carry: the same carry leaves.
        moving_carry: the carry leaves that have a cotangent in some step.
        x: the input leaves whose cotangents are wanted and not zero.
        ys: the leaves of y that have a cotangent.
    """

    def __init__(self, plan: ScanPlan, wanted: Sequence[bool], final: Sequence[bool], ys: Sequence[bool]) -> None:
        step = plan.step
        sizes = [len(step.constants), len(step.carry)]
        nonzero = step.with_cotangents(wanted, final, ys)
        both = [is_wanted and is_nonzero for is_wanted, is_nonzero in zip(wanted, nonzero, strict=True)]
        self.constants, self.carry, self.x = map(places, split_list(both, sizes))
        self.moving_carry = places(split_list(nonzero, sizes)[1])
        self.ys = places(ys)
        self._plan, self._wanted = plan, [*map(places, split_list(wanted, sizes))]
        self._recomputed = plan.residuals.recomputed
        self._sizes = [*sizes, len(step.x), len(step.kept), len(plan.residuals.restored), len(self.ys)]

    def of_wanted(self, *cotangents: Sequence[Any]) -> list[Any]:
        """The cotangents of all wanted leaves, None for zeros, from those of `constants`, `carry` and `x`."""
        groups = zip(self._wanted, (self.constants, self.carry, self.x), cotangents, strict=True)
        return [leaf for indices, positions, leaves in groups for leaf in leaves_at(indices, positions, leaves)]

    def program(
        self,
        constants: Any,
        carry: Any,
        x: Sequence[Any],
        kept: Sequence[Any],
        new_carry: Sequence[Any],
        ct_ys: Sequence[Any],
        ct_carry: Any,
    ) -> tuple[Program, Unchanged]:
        """The vjp, on arguments of these types, and the cotangents of the carry that it does not change.

        Its invariant inputs are the constants and these cotangents. Its known inputs are the carry leaves that are not
        recomputed, x, the kept values, the new values of the restored carry leaves and the cotangents of y; its carry
        is the recomputed leaves and the other cotangents of the carry. It sums the cotangents of the constants, and
        stacks those of x.
        """
        program = trace(self._vjp, *constants, *carry, *x, *kept, *new_carry, *ct_ys, *ct_carry)
        inputs = split_list(program.known, self._sizes)
        sizes = [len(self._recomputed), len(self.constants), len(self.moving_carry)]
        program = reading_kept(program, (len(program.stacked) - sum(sizes) - len(self.x)) // 2)
        new_recomputed, summed, new_ct, ct_x = split_list(program.stacked, sizes)
        *other_inputs, ct_carry = inputs[2:]
        recomputed = [inputs[1][index] for index in self._recomputed]
        kept_carry = [leaf for index, leaf in enumerate(inputs[1]) if index not in self._recomputed]
        unchanged = Unchanged.between(ct_carry, new_ct)
        program = replace(
            program,
            invariant=(*inputs[0], *unchanged.chosen(ct_carry)),
            known=(*kept_carry, *chain(*other_inputs)),
            carry=(*recomputed, *unchanged.others(ct_carry)),
            new_carry=(*new_recomputed, *unchanged.others(new_ct)),
            summed=tuple(summed),
            stacked=tuple(ct_x),
        )
        return program, unchanged

    def _vjp(self, *leaves: Any) -> list[Any]:
        constants, carry, x, kept, known_new_carry, ct_y, ct_carry = split_list(leaves, self._sizes)

        def differentiable(some_constants: Any, some_carry: Any, some_x: Any) -> tuple[list[Any], tuple[Any, Any]]:
            new_carry, y, computed_and_kept = self._plan.step.restored(
                replace_at(constants, self.constants, some_constants),
                replace_at(carry, self.moving_carry, some_carry),
                replace_at(x, self.x, some_x),
                kept,
                dict(zip(self._plan.residuals.restored, known_new_carry, strict=True)),
            )
            differentiated = [*(new_carry[i] for i in self.moving_carry), *(y[i] for i in self.ys)]
            return differentiated, ([new_carry[i] for i in self._recomputed], [*chain(*computed_and_kept)])

        arguments = (
            [constants[index] for index in self.constants],
            [carry[index] for index in self.moving_carry],
            [x[index] for index in self.x],
        )
        primals: list[Any] = []

        # `jax.vjp` would linearize each equation in a separate trace, which takes 1.5 times as long.
        def tangents(*directions: Any) -> list[Any]:
            _, of_results, of_trace = jax.jvp(differentiable, arguments, directions, has_aux=True)
            primals.extend(of_trace)  # They depend on no direction, so the trace around this one has them.
            return of_results

        cotangents = jax.linear_transpose(tangents, *arguments)([*ct_carry, *ct_y])
        new_recomputed, computed_and_kept = primals
        return [*new_recomputed, *jax.tree.leaves(cotangents), *computed_and_kept]
