"""A loop whose number of iterations is known only when it runs, with derivatives of every order.

JAX has no reverse mode for `lax.while_loop`, because the backward pass needs memory for every iteration. Here the
number of iterations has a static limit, for which that memory is allocated. The transpose of the loop is such a loop
again, from the last iteration to the first, so gradients of gradients need no more code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import and_
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan._util.messages import is_float
from rnnscan._util.varying import vary, varying
from rnnscan._util.zeros import zeros_of_type
from rnnscan.engine.analysis.leaves import leaves_at, places, replace_at, split_list
from rnnscan.engine.analysis.moving import moving_values, values_with_cotangents
from rnnscan.engine.loops.examples import greatest, hold
from rnnscan.engine.loops.flat_function import is_zero
from rnnscan.engine.loops.linear_tangents import linear_tangents
from rnnscan.engine.loops.own_derivative import with_derivative
from rnnscan.ir.program import Value
from rnnscan.ir.trace import Inliner


# (state, values of each step of a chunk, values of the chunk) -> (state, new values of each step, new values of it)
Iteration: TypeAlias = Callable[[list[Any], list[Any], list[Any]], tuple[list[Any], list[Any], list[Any]]]


@dataclass(frozen=True)
class Blocks:
    """The steps of each iteration in stacks over all steps: `size` of them, from `offset + iteration * size`.

    Attributes:
        length: number of steps in a stack.
        size: steps of an iteration.
        offset: the first step of iteration 0; may be traced.
    """

    length: int
    size: int
    offset: Any = 0

    def read(self, stack: Any, iteration: Any) -> Any:
        """The block of an iteration."""
        return lax.dynamic_slice_in_dim(stack, self.offset + iteration * self.size, self.size)

    def write(self, stack: Any, block: Any, iteration: Any) -> Any:
        """The stack with the block of an iteration in its place."""
        return lax.dynamic_update_slice_in_dim(stack, block, self.offset + iteration * self.size, 0)


def counted_loop(
    iteration: Iteration,
    state: Sequence[Any],
    steps: Sequence[Any],
    once: Sequence[Any],
    *,
    count: Any,
    limit: int,
    blocks: Blocks,
    back: bool = False,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Run `count` iterations.

    It computes

        for t in range(count):
            state, new_steps[block(t)], new_once[t] = iteration(state, steps[block(t)], once[t])

    Args:
        iteration: one iteration. Arrays that it closes over get gradients.
        state: the state before the first iteration.
        steps: leaves `(blocks.length, ...)`.
        once: leaves `(limit, ...)`.
        count: the number of iterations, an integer of at most `limit`; may be traced.
        limit: the most iterations.
        blocks: which steps belong to which iteration.
        back: from the last iteration to the first.

    Returns:
        The state, leaves `(blocks.length, ...)` and leaves `(limit, ...)`, with zeros where no iteration writes.
    """
    bounds = [jnp.asarray(count, jnp.int32), jnp.asarray(blocks.offset, jnp.int32)]
    # Under `shard_map` each device may have its own count. Then the state, and values read at an index, vary too.
    state = vary(list(state), varying(jax.typeof(bounds[0])) | varying(jax.typeof(bounds[1])))
    step_types = jax.eval_shape(lambda steps, at: [blocks.read(leaf, at) for leaf in steps], list(steps), bounds[0])
    once_types = jax.eval_shape(lambda once, at: [leaf[at] for leaf in once], list(once), bounds[0])
    traced, types = jax.make_jaxpr(iteration, return_shape=True)(state, step_types, once_types)
    consts = list(traced.consts)
    loop = _Loop(traced.jaxpr, tuple(map(len, types)), limit, blocks.length, blocks.size, back)
    del traced  # JAX caches the functions of the loop, which must not hold arrays of this trace.
    return _differentiable(loop)(bounds, consts, state, list(steps), list(once))


def scan_counted(
    step: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]],
    carry: Sequence[Any],
    xs: Sequence[Any],
    *,
    count: Any,
    limit: int,
) -> tuple[list[Any], list[Any]]:
    """`lax.scan` over flat lists, for the first `count` steps of `limit`. Later ys are zero."""

    def iteration(carry: list[Any], x: list[Any], _: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        carry, y = step(carry, [leaf[0] for leaf in x])
        return carry, [leaf[None] for leaf in y], []

    final, ys, _ = counted_loop(iteration, carry, xs, [], count=count, limit=limit, blocks=Blocks(limit, 1))
    return final, ys


@dataclass(frozen=True, eq=False)
class _Loop:
    """A loop without its arrays.

    Attributes:
        jaxpr: one iteration. Its constants are the arrays that it closes over.
        results: the number of leaves of the new state, of new steps, and of new values of a chunk.
        limit, length, size, back: as in `counted_loop` and `Blocks`.
    """

    jaxpr: Any
    results: tuple[int, ...]
    limit: int
    length: int
    size: int
    back: bool

    def iteration(
        self, consts: Sequence[Any], state: Any, steps: Any, once: Any
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Run one iteration."""
        results = core.jaxpr_as_fun(core.ClosedJaxpr(self.jaxpr, list(consts)))(*state, *steps, *once)
        first, second = self.results[0], self.results[0] + self.results[1]
        return list(results[:first]), list(results[first:second]), list(results[second:])

    def with_cotangents(self, wanted: Sequence[bool], results: Sequence[bool]) -> list[bool]:
        """Which leaves of consts, state, steps and once have a cotangent in some iteration.

        Args:
            wanted: for each of them whether it has a tangent before the first iteration.
            results: for each leaf of the results whether it has a cotangent.
        """
        inliner, size = Inliner(), self.results[0]
        constants, inputs = ([Value(var.aval) for var in vs] for vs in (self.jaxpr.constvars, self.jaxpr.invars))
        outputs = inliner.inline(self.jaxpr, constants, inputs)
        feedback = list(zip(outputs[:size], inputs[:size], strict=True))
        first = [value for value, moves in zip([*constants, *inputs], wanted, strict=True) if moves]
        ends = [atom for atom, has_cotangent in zip(outputs, results, strict=True) if has_cotangent]
        moving = moving_values(inliner.equations, first, feedback)
        # Without an iteration the last state is the first one.
        ended = {leaf for leaf, has_cotangent in zip(inputs[:size], results[:size], strict=True) if has_cotangent}
        reached = values_with_cotangents(inliner.equations, moving, ends, feedback) | ended
        return [value in reached for value in (*constants, *inputs)]

    def run(self, bounds: Any, consts: Any, state: Any, steps: Any, once: Any, *, save: bool) -> tuple[Any, list[Any]]:
        """The results of `counted_loop`, and the state before each iteration, if it is saved."""
        count, offset = bounds
        blocks, each = Blocks(self.length, self.size, offset), Blocks(self.limit, 1)
        types = [var.aval for var in self.jaxpr.outvars]
        new_steps = [zeros_of_type(aval, self.length) for aval in types[self.results[0] :][: self.results[1]]]
        new_once = [zeros_of_type(aval, self.limit, new_axis=True) for aval in types[sum(self.results[:2]) :]]
        saved = [zeros_of_type(jax.typeof(leaf), self.limit, new_axis=True) for leaf in state if save]

        iterations = greatest(count)

        def body(loop_state: Any) -> Any:
            done, state, new_steps, new_once, saved = loop_state
            at = iterations - 1 - done if self.back else done
            runs = at < count
            saved = [each.write(stack, leaf[None], at) for stack, leaf in zip(saved, state, strict=save)]
            new_state, made_steps, made_once = self.iteration(
                consts, state, [blocks.read(leaf, at) for leaf in steps], [each.read(leaf, at)[0] for leaf in once]
            )
            before = [blocks.read(stack, at) for stack in new_steps]
            made_steps = hold(runs, made_steps, before)
            made_once = hold(runs, made_once, [each.read(stack, at)[0] for stack in new_once])
            new_steps = [blocks.write(*pair, at) for pair in zip(new_steps, made_steps, strict=True)]
            new_once = [each.write(stack, leaf[None], at) for stack, leaf in zip(new_once, made_once, strict=True)]
            return done + 1, hold(runs, new_state, state), new_steps, new_once, saved

        start = (jnp.zeros_like(iterations), list(state), new_steps, new_once, saved)
        _, *results, saved = lax.while_loop(lambda loop_state: loop_state[0] < iterations, body, start)
        return tuple(results), saved


def _differentiable(loop: _Loop) -> Any:
    """`(bounds, consts, state, steps, once) -> (state, new steps, new once)`, with derivatives."""

    def run(*arguments: Any) -> Any:
        return loop.run(*arguments, save=False)[0]

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        results, saved = loop.run(*primals, save=True)
        leaves = jax.tree.leaves(tangents[1:], is_leaf=is_zero)
        return results, linear_tangents((primals, saved), results, leaves, _Jvp(loop), _Vjp(loop))

    return with_derivative(run, differentiate)


@dataclass(frozen=True, eq=False)
class _Jvp:
    """The derivative of a loop: the same loop, over values and tangents."""

    loop: _Loop

    def __call__(self, residuals: Any, wanted: list[bool], tangents: list[Any]) -> list[Any]:
        ((count, offset), *arguments), _ = residuals
        consts, state, steps, once = arguments
        moving = _wanted(wanted, arguments)
        of_consts, of_state, of_steps, of_once = split_list(tangents, list(map(len, moving))[:-1])
        tangent_of = dict(zip(moving[1], of_state, strict=True))
        # A state without a tangent can get one in the loop.
        moving[1] = [index for index, leaf in enumerate(state) if is_float(leaf)]

        def iteration(state_: list[Any], steps_: list[Any], once_: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
            primal, of_state = split_list(state_, [len(state)])
            step, of_steps = split_list(steps_, [len(steps)])
            chunk, of_once = split_list(once_, [len(once)])
            whole = (consts, primal, step, chunk)

            def run(*moving_primals: Any) -> tuple[Any, Any]:
                results = self.loop.iteration(*map(replace_at, whole, moving, moving_primals))
                return [[leaf for leaf in group if is_float(leaf)] for group in results], results[0]

            directions = [of_consts, of_state, of_steps, of_once]
            _, result_tangents, new_state = jax.jvp(run, _chosen(whole, moving), directions, has_aux=True)
            return [*new_state, *result_tangents[0]], result_tangents[1], result_tangents[2]

        tangent_state = [tangent_of.get(index, jnp.zeros_like(state[index])) for index in moving[1]]
        carried, *stacks = counted_loop(
            iteration,
            [*state, *tangent_state],
            [*steps, *of_steps],
            [*once, *of_once],
            count=count,
            limit=self.loop.limit,
            blocks=Blocks(self.loop.length, self.loop.size, offset),
            back=self.loop.back,
        )
        return [*carried[len(state) :], *stacks[0], *stacks[1]]


@dataclass(frozen=True, eq=False)
class _Vjp:
    """The transpose of that derivative: a loop from the last iteration to the first, which runs the vjp of
    each iteration.
    """

    loop: _Loop

    def __call__(self, residuals: Any, wanted: list[bool], cotangents: list[Any]) -> list[Any]:
        ((count, offset), *arguments), saved = residuals
        consts, state, steps, once = arguments
        reached = self.loop.with_cotangents(wanted, [leaf is not None for leaf in cotangents])
        moving = _wanted([*map(and_, wanted, reached)], arguments)
        moving[1] = _wanted(reached, arguments)[1]
        ct_state, ct_steps, ct_once = split_list(cotangents, self.loop.results[:2])
        nonzero = [[index for index, leaf in enumerate(group) if leaf is not None] for group in (ct_steps, ct_once)]

        def iteration(
            carried: list[Any], steps_: list[Any], once_: list[Any]
        ) -> tuple[list[Any], list[Any], list[Any]]:
            ct_state, sums = split_list(carried, [len(moving[1])])
            step, ct_step = split_list(steps_, [len(steps)])
            chunk, before, ct_chunk = split_list(once_, [len(once), len(saved)])
            whole = (consts, before, step, chunk)

            def run(*moving_primals: Any) -> list[list[Any]]:
                results = self.loop.iteration(*map(replace_at, whole, moving, moving_primals))
                return _chosen(results, [moving[1], *nonzero])

            of_consts, new_ct_state, *ct_inputs = jax.vjp(run, *_chosen(whole, moving))[1](
                [ct_state, ct_step, ct_chunk]
            )
            return [*new_ct_state, *map(jnp.add, sums, of_consts)], ct_inputs[0], ct_inputs[1]

        start = [jnp.zeros_like(state[index]) if ct_state[index] is None else ct_state[index] for index in moving[1]]
        carried, *ct_stacks = counted_loop(
            iteration,
            [*start, *(jnp.zeros_like(consts[index]) for index in moving[0])],
            [*steps, *(ct_steps[index] for index in nonzero[0])],
            [*once, *saved, *(ct_once[index] for index in nonzero[1])],
            count=count,
            limit=self.loop.limit,
            blocks=Blocks(self.loop.length, self.loop.size, offset),
            back=not self.loop.back,
        )
        new_ct_state, sums = split_list(carried, [len(moving[1])])
        groups = zip(_wanted(wanted, arguments), moving, (sums, new_ct_state, *ct_stacks), strict=True)
        return [leaf for indices, positions, leaves in groups for leaf in leaves_at(indices, positions, leaves)]


def _wanted(wanted: Sequence[bool], groups: Sequence[Sequence[Any]]) -> list[list[int]]:
    """The wanted positions in each group."""
    return [*map(places, split_list(wanted, list(map(len, groups))[:-1]))]


def _chosen(groups: Sequence[Sequence[Any]], positions: Sequence[Sequence[int]]) -> list[list[Any]]:
    """The leaves at some positions of each group."""
    return [
        [group[index] for index in group_positions] for group, group_positions in zip(groups, positions, strict=True)
    ]
