"""The backward pass: chunk by chunk from the last step to run to the first.

For each chunk there are two runs over one program, a step's pull-back: the first goes forward and brings back the carry
leaves that were kept at the beginning of the chunk only; the second goes back and carries the cotangent of the carry.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.fission.analysis.split import Roles, Split, split
from rnnscan.engine.fission.analysis.sum_placement import place_sums
from rnnscan.engine.fission.execute.chunked_scan import before_each
from rnnscan.engine.fission.execute.forward import Plan, Saved
from rnnscan.engine.fission.execute.runner import Runner, invariant_values
from rnnscan.engine.fission.execute.sharded_rows import sharded_rows
from rnnscan.engine.fission.flat_step import one_step
from rnnscan.engine.fission.heuristics import heuristics, stays_whole
from rnnscan.engine.fission.passes.products import join_products, store_transposed
from rnnscan.engine.fission.passes.sums import concatenate_pads, merge_products
from rnnscan.engine.fission.trace import Program, Value, trace, without_repeats


@dataclass(frozen=True)
class Backward:
    """The backward pass of a scan over a step.

    Attributes:
        plan: how the scan is run.
        spread: the constants that were spread over parts of the rows, and have a cotangent for each part.
    """

    plan: Plan
    spread: Collection[int] = ()

    def __call__(self, saved: Saved, wanted: Sequence[bool], final: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        """Pull cotangents of the final carry and of ys back to constants, initial carry and xs.

        Args:
            saved: what was kept.
            wanted: for each leaf of constants, carry and xs whether its cotangent is wanted.
            final: cotangents of the final carry; None where one is zero.
            ys: cotangents of ys; None where one is zero.

        Returns:
            The cotangents that are wanted, of constants, initial carry and xs in turn.
        """
        pull = _PullBack(self.plan, saved, wanted, ys)
        ct_carry = [_instantiated(final[index], saved.initial[index]) for index in pull.float_carry]
        steps = _Steps.of(pull, saved, pull.nonzero_ys(ys), ct_carry)
        known = [*saved.repeated.values(), *saved.carries.values(), *saved.xs, *saved.kept, *pull.nonzero_ys(ys)]
        before_chunks = [self._before_chunks(saved, index) for index in self.plan.flat.repeats]
        starts = [*before_chunks, *saved.starts.values()]
        first_starts = [saved.initial[index] for index in [*self.plan.flat.repeats, *saved.starts]]
        zeros = [_zero_sum(saved.constants[index]) for index in pull.wanted_constants]
        (ct_carry, sums), ct_xs, _ = self.plan.chunks.run(
            steps.pull_chunk, (ct_carry, steps.pull.spread(zeros)), known, starts, first_starts, back=True
        )
        sums = steps.pull.totals(sums, zeros, [index in self.spread for index in pull.wanted_constants])
        return pull.wanted_cotangents(saved, ct_carry, sums, ct_xs)

    def _before_chunks(self, saved: Saved, index: int) -> Any:
        """A carry leaf that y repeats, before each whole chunk: y at the last step of the chunk that runs before."""
        ys, initial = saved.repeated[self.plan.flat.repeats[index]], saved.initial[index][None]
        return self.plan.chunks.before(ys, initial)


class _PullBack:
    """One step's pull-back as a function of flat arguments: what it is given, and what it gives."""

    def __init__(self, plan: Plan, saved: Saved, wanted: Sequence[bool], ct_ys: Sequence[Any]) -> None:
        self.plan = plan
        constants, carry = len(saved.constants), len(saved.initial)
        self.wanted_constants = [index for index in range(constants) if wanted[index]]
        self.float_carry = [index for index, leaf in enumerate(saved.initial) if _is_float(leaf)]
        self.wanted_xs = [index for index in range(len(saved.xs)) if wanted[constants + carry + index]]
        self.wanted_carry = [index for index in range(carry) if wanted[constants + index]]
        self.nonzero = [index for index, leaf in enumerate(ct_ys) if leaf is not None]
        self.following = [*saved.starts]

    def nonzero_ys(self, ct_ys: Sequence[Any]) -> list[Any]:
        return [ct_ys[index] for index in self.nonzero]

    def program(self, saved: Saved, ct_ys: Sequence[Any], ct_carry: Sequence[Any]) -> Program:
        """`(constants, carry, x, kept, cotangents of y and of the carry)` to what follows, and cotangents."""
        steps = map(one_step, [*saved.xs, *saved.kept, *ct_ys])
        return without_repeats(trace(self._pull_back(saved), *saved.constants, *saved.initial, *steps, *ct_carry))

    def _pull_back(self, saved: Saved) -> Any:
        sizes = [len(saved.constants), len(saved.initial), len(saved.xs), len(saved.kept), len(self.nonzero)]

        def pull_back(*leaves: Any) -> list[Any]:
            constants, carry, x, kept, ct_y, ct_carry = _cut(leaves, sizes)

            def differentiable(some_constants: Any, some_carry: Any, some_x: Any) -> tuple[list[Any], list[Any]]:
                new_carry, y = self.plan.flat.restored(
                    _with(constants, self.wanted_constants, some_constants),
                    _with(carry, self.float_carry, some_carry),
                    _with(x, self.wanted_xs, some_x),
                    kept,
                )
                differentiated = [*(new_carry[i] for i in self.float_carry), *(y[i] for i in self.nonzero)]
                return differentiated, [new_carry[i] for i in self.following]

            some = (
                [constants[index] for index in self.wanted_constants],
                [carry[index] for index in self.float_carry],
                [x[index] for index in self.wanted_xs],
            )
            _, pull, new_following = jax.vjp(differentiable, *some, has_aux=True)
            return [*new_following, *(leaf for group in pull([*ct_carry, *ct_y]) for leaf in group)]

        return pull_back

    def wanted_cotangents(
        self, saved: Saved, ct_carry: Sequence[Any], sums: Sequence[Any], ct_xs: Sequence[Any]
    ) -> list[Any]:
        constants = [
            total.astype(saved.constants[index].dtype) for index, total in zip(self.wanted_constants, sums, strict=True)
        ]
        carry = [ct_carry[self.float_carry.index(index)] for index in self.wanted_carry]
        return [*constants, *carry, *ct_xs]


@dataclass(frozen=True)
class _Steps:
    """A step's pull-back, split for its two runs over a chunk."""

    plan: Plan
    repeated: list[Value]
    known: list[Value]
    recompute: Runner
    pull: Runner

    @staticmethod
    def of(pull: _PullBack, saved: Saved, ct_ys: Sequence[Any], ct_carry: Sequence[Any]) -> "_Steps":
        plan = pull.plan
        program = pull.program(saved, ct_ys, ct_carry)
        sizes = [len(saved.constants), len(saved.initial), len(saved.xs) + len(saved.kept), len(ct_ys)]
        constants, carry, given, ct_y, ct_carry_inputs = _cut(program.inputs, sizes)
        new_following, summed, new_ct, stacked = _cut(
            program.outputs, [len(pull.following), len(pull.wanted_constants), len(pull.float_carry)]
        )
        following = [carry[index] for index in pull.following]
        others = [leaf for index, leaf in enumerate(carry) if index not in pull.following]
        program = store_transposed(concatenate_pads(program), constants)
        program = merge_products(program, constants, [*following, *ct_carry_inputs], [*new_following, *new_ct])
        program = join_products(program, constants, ct_carry_inputs, new_ct)
        again = Roles(constants, [*others, *given], following, new_following, stacked=following)
        back = Roles(constants, [*carry, *given, *ct_y], ct_carry_inputs, new_ct, summed, stacked)
        splits = [_split(program, again), _split(program, back)]
        invariant = invariant_values(splits, saved.constants)
        rows = sharded_rows([*saved.initial, *map(one_step, saved.xs)], others=saved.constants)
        return _Steps(
            plan,
            repeated=[carry[index] for index in plan.flat.repeats],
            known=[*(carry[index] for index in saved.carries), *given, *ct_y],
            recompute=Runner(splits[0], invariant, reverse=plan.reverse, unroll=plan.unroll),
            pull=Runner(splits[1], invariant, reverse=not plan.reverse, unroll=plan.unroll, rows=rows),
        )

    def pull_chunk(
        self, state: Any, known: list[Any], starts: list[Any], steps: int
    ) -> tuple[Any, list[Any], list[Any]]:
        """Pull the cotangent of the carry back through a chunk of steps, and add to the sums over them."""
        flat = self.plan.flat
        ys, given = known[: len(flat.repeated_ys)], known[len(flat.repeated_ys) :]
        values = dict(zip(self.known, given, strict=True))
        before, starts = starts[: len(self.repeated)], starts[len(self.repeated) :]
        for value, y, start in zip(self.repeated, flat.repeats.values(), before, strict=True):
            values[value] = before_each(ys[flat.repeated_ys.index(y)], start, reverse=self.plan.reverse)
        if starts:
            values = self.recompute(steps, values, starts)[2].varying
        ct_carry, sums, chunk = self.pull(steps, values, *state)
        return (ct_carry, sums), [chunk.stacked(atom) for atom in self.pull.split.roles.stacked], []


def _split(program: Program, roles: Roles) -> Split:
    accumulated, emitted = place_sums(program, roles)
    return split(
        program,
        roles,
        pays=heuristics().pays,
        stays_whole=stays_whole,
        accumulated=accumulated,
        emitted=emitted,
    )


def _cut(leaves: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """The leaves in groups of the given sizes, and what is left as the last one."""
    groups, begin = [], 0
    for size in sizes:
        groups.append(list(leaves[begin : begin + size]))
        begin += size
    return [*groups, list(leaves[begin:])]


def _with(leaves: Sequence[Any], indices: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    replaced = list(leaves)
    for index, replacement in zip(indices, replacements, strict=True):
        replaced[index] = replacement
    return replaced


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


# Zeros are made from what they are the cotangents of, and not by jnp.zeros: under shard_map they must vary over the
# mesh as it does.


def _instantiated(leaf: Any, like: Any) -> Any:
    return lax.full_like(like, 0) if leaf is None else leaf


def _zero_sum(constant: Any) -> Any:
    """What the cotangents of a constant are added to over the steps, in at least float32."""
    dtype = jnp.result_type(constant)
    return lax.full_like(constant, 0, dtype=jnp.promote_types(dtype, jnp.float32))
