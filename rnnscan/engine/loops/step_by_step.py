"""Run a loop in parallel where that is exact, else step by step.

A parallel form composes steps, and multiplies what the loop selects: infinity times the zero of a reset is NaN, and so
is an overflown product of factors times a carry of zeros. The loop makes neither. Where the parallel form gives such
values, the loop itself runs, so that they reach what they reach in the loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.varying import vary, varying
from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.engine.analysis.leaves import places, replace_at, split_list
from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.linear_tangents import linear_tangents
from rnnscan.engine.loops.own_derivative import differentiate_as, with_derivative
from rnnscan.engine.loops.time_loop import before_and_after
from rnnscan.ir.program import Equation


# The scope of the loop in reserve.
RESERVE = "loop_in_reserve"

# arguments -> results
Exact: TypeAlias = Callable[..., list[Any]]
# arguments -> results, and for each whether it is right: a boolean, or an array of its last axes
Parallel: TypeAlias = Callable[..., tuple[list[Any], list[Any]]]


@dataclass(frozen=True, eq=False)
class CycleLoop:
    """The steps of a cycle, one by one.

    Attributes:
        cycle: the cycle.
        axes: for each value of `cycle.reads`, 0 if it is stacked over the steps, else None.
        steps: the number of steps.
        reverse: whether the steps run from the last to the first.
        unroll: as in `lax.scan`.
    """

    cycle: Cycle
    axes: tuple[int | None, ...]
    steps: int
    reverse: bool
    unroll: int | bool

    @staticmethod
    def of(cycle: Cycle, chunk: Chunk, *, reverse: bool, unroll: int | bool) -> "CycleLoop":
        """The loop over the steps of a chunk."""
        axes = tuple(0 if chunk.varies(value) else None for value in cycle.reads)
        return CycleLoop(cycle, axes, chunk.steps, reverse, unroll)

    def __call__(self, *arguments: Any) -> list[Any]:
        """The leaves after each step, from those before the first and the values of `cycle.reads`."""
        start, read_values = split_list(arguments, [len(self.cycle.leaves)])
        stacked = [value for value, axis in zip(read_values, self.axes, strict=True) if axis == 0]

        def step(carry: list[Any], step_values: list[Any]) -> tuple[list[Any], list[Any]]:
            taken = iter(step_values)
            whole = [next(taken) if axis == 0 else value for value, axis in zip(read_values, self.axes, strict=True)]
            new = self.cycle.step(carry, whole)
            return new, new

        start = vary(list(start), frozenset[str]().union(*(varying(jax.typeof(leaf)) for leaf in arguments)))
        after: list[Any] = lax.scan(step, start, stacked, length=self.steps, reverse=self.reverse, unroll=self.unroll)[
            1
        ]
        return after


def run_unrolled(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool
) -> tuple[list[Any], list[Any]]:
    """Run the steps of a recurrence over a short chunk one by one, without a loop. See `Executor`.

    It is exact, so nothing has to be in reserve. On a GPU a loop in reserve makes the device wait for the host, which
    reads whether it runs: 0.1 ms for each chunk of an LSTM on an H100, a fifth of a training step (jax 0.11.2).
    """
    loop = CycleLoop.of(recurrence.cycle, chunk, reverse=reverse, unroll=True)
    after = loop(*start, *map(chunk.read, loop.cycle.reads))
    return before_and_after(after, start, reverse=reverse)


def or_exact(parallel: Parallel, exact: Exact, count: int, equations: Sequence[Equation] = ()) -> Exact:
    """The results of a parallel function, and of an exact one where those are not to be trusted.

    Derivatives of every order are those of the parallel function, and of the exact one where they are not finite.

    Args:
        parallel: `(*arguments) -> (results, whether each is right)`. It must hold no array of a trace, because JAX
            caches it.
        exact: the same results; the same.
        count: how many there are.
        equations: those of a step. If one stops a gradient, which a parallel form of values knows nothing of,
            derivatives are those of the exact function.
    """

    def run(*arguments: Any) -> list[Any]:
        axes = frozenset[str]().union(*(varying(jax.typeof(leaf)) for leaf in arguments))
        results, trusted = vary(parallel(*arguments), axes)
        return exact_unless(results, trusted, exact, arguments)

    def differentiate(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], Any]:
        results = call(*primals)
        return results, linear_tangents(list(primals), results, list(tangents), jvp_rule, vjp_rule)

    def jvp_rule(primals: list[Any], wanted: list[bool], tangents: list[Any]) -> list[Any]:
        return _jointly(parallel, exact, wanted, count)(*primals, *tangents)[count:]

    def vjp_rule(primals: list[Any], wanted: list[bool], cotangents: list[Any]) -> list[Any]:
        run = _transposed(parallel, exact, wanted, [leaf is not None for leaf in cotangents])
        return run(*primals, *(leaf for leaf in cotangents if leaf is not None))

    if any(equation.name == "stop_gradient" for equation in equations):
        return differentiate_as(exact, run)
    call = with_derivative(run, differentiate)
    return call


def exact_unless(results: Sequence[Any], trusted: Sequence[Any], exact: Exact, arguments: Sequence[Any]) -> list[Any]:
    """The results that are right, and the exact ones in place of the others.

    Args:
        results: the results.
        trusted: for each whether it is right: a boolean, or an array of its last axes.
        exact: computes them exactly. It runs if one is not right.
        arguments: its arguments, among them all arrays that it reads.
    """
    axes = frozenset[str]().union(*(varying(jax.typeof(leaf)) for leaf in (*results, *trusted)))

    def run_exactly(state: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
        is_right = state[1]
        # XLA moves what does not depend on the state out of the loop, where it always runs: a training step of RetNet
        # took 4.3 times as long (jax 0.10.2).
        held, is_right = lax.optimization_barrier(([*arguments], is_right))
        with jax.named_scope(RESERVE):
            instead = vary(list(exact(*held)), axes)
        if trusted[0].ndim or any(flag is not trusted[0] for flag in trusted):
            triples = zip(trusted, results, instead, strict=True)
            instead = [jnp.where(is_right, fast, slow) for is_right, fast, slow in triples]
        # Else no result is right, and none needs memory beside the exact one.
        return instead, jnp.logical_not(is_right)

    # A loop of one iteration or none: under `vmap`, `lax.cond` would always run both branches.
    is_right = reduce(jnp.logical_and, map(jnp.all, trusted))
    return lax.while_loop(lambda state: ~state[1], run_exactly, (vary(list(results), axes), vary(is_right, axes)))[0]


def all_finite(leaves: Sequence[Any]) -> Any:
    """Whether all numbers are finite."""
    return reduce(jnp.logical_and, (jnp.all(jnp.isfinite(leaf)) for leaf in leaves), jnp.bool_(True))


def _jointly(parallel: Parallel, exact: Exact, wanted: list[bool], count: int) -> Exact:
    """`(*arguments, *tangents of those that are wanted) -> (*results, *tangents)`."""
    indices = places(wanted)

    def parallel_jvp(*leaves: Any) -> tuple[list[Any], list[Any]]:
        of_moving, moving, tangents = _moving(parallel, leaves, indices, len(wanted))
        results, result_tangents, trusted = jax.jvp(of_moving, moving, tangents, has_aux=True)
        is_right = reduce(jnp.logical_and, map(jnp.all, trusted)) & all_finite(result_tangents)
        return [*results, *result_tangents], [is_right] * 2 * count

    def exact_jvp(*leaves: Any) -> list[Any]:
        of_moving, moving, tangents = _moving(exact, leaves, indices, len(wanted))
        results, result_tangents = jax.jvp(of_moving, moving, tangents)
        return [*results, *result_tangents]

    return or_exact(parallel_jvp, exact_jvp, 2 * count)


def _transposed(parallel: Parallel, exact: Exact, wanted: list[bool], given: list[bool]) -> Exact:
    """`(*arguments, *cotangents of given results) -> cotangents of those arguments that are wanted`."""
    indices = places(wanted)

    def whole(results: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        others = iter(cotangents)
        pairs = zip(results, given, strict=True)
        return [next(others) if is_given else jnp.zeros_like(result) for result, is_given in pairs]

    def parallel_vjp(*leaves: Any) -> tuple[list[Any], list[Any]]:
        of_moving, moving, cotangents = _moving(parallel, leaves, indices, len(wanted))
        results, vjp, trusted = jax.vjp(of_moving, *moving, has_aux=True)
        ct_moving = list(vjp(whole(results, cotangents)))
        is_right = reduce(jnp.logical_and, map(jnp.all, trusted)) & all_finite(ct_moving)
        return ct_moving, [is_right] * len(indices)

    def exact_vjp(*leaves: Any) -> list[Any]:
        of_moving, moving, cotangents = _moving(exact, leaves, indices, len(wanted))
        results, vjp = jax.vjp(of_moving, *moving)
        return list(vjp(whole(results, cotangents)))

    return or_exact(parallel_vjp, exact_vjp, len(indices))


def _moving(
    function: Callable[..., Any], leaves: Sequence[Any], indices: Sequence[int], size: int
) -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """The function of those arguments alone that move, these, and their tangents or the cotangents of the results."""
    primals, rest = split_list(leaves, [size])
    return (
        lambda *moving: function(*replace_at(primals, indices, moving)),
        [primals[index] for index in indices],
        list(rest),
    )
