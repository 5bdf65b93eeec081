"""The results of a parallel form where they are right, and those of the loop itself elsewhere.

A parallel form composes steps, and multiplies what the loop selects: infinity times the zero of a reset is NaN, and so
is an overflown product of factors times a carry of zeros. The loop makes neither. Where the parallel form gives such
values, the loop itself runs, so that they reach what they reach in the loop.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.varying import vary_as


# The scope of the loop in reserve.
RESERVE = "loop_in_reserve"

# arguments -> results
Exact: TypeAlias = Callable[..., list[Any]]
# arguments -> results, and for each whether it is right: a boolean, or an array of its last axes
Parallel: TypeAlias = Callable[..., tuple[list[Any], list[Any]]]


def guarded(parallel: Parallel, exact: Exact) -> Exact:
    """The results of a parallel function where they are right, and those of an exact one elsewhere.

    Args:
        parallel: `(*arguments) -> (results, whether each is right)`.
        exact: the same results.
    """

    def run(*arguments: Any) -> list[Any]:
        results, trusted = parallel(*arguments)
        return exact_unless(results, trusted, exact, arguments)

    return run


def exact_unless(results: Sequence[Any], trusted: Sequence[Any], exact: Exact, arguments: Sequence[Any]) -> list[Any]:
    """The results that are right, and the exact ones in place of the others.

    Args:
        results: the results.
        trusted: for each whether it is right: a boolean, or an array of its last axes.
        exact: computes them exactly. It runs if one is not right.
        arguments: its arguments, among them all arrays that it reads.
    """
    parallel, trusted = vary_as((list(results), list(trusted)), [*results, *trusted, *arguments])

    def run_exactly(state: tuple[list[Any], Any]) -> tuple[list[Any], Any]:
        is_right = state[1]
        # XLA moves what does not depend on the state out of the loop, where it always runs: a training step of RetNet
        # took 4.3 times as long (jax 0.10.2).
        held, is_right = lax.optimization_barrier(([*arguments], is_right))
        with jax.named_scope(RESERVE):
            instead = vary_as(list(exact(*held)), parallel)
        if trusted[0].ndim or any(flag is not trusted[0] for flag in trusted):
            triples = zip(trusted, parallel, instead, strict=True)
            instead = [jnp.where(is_right, fast, slow) for is_right, fast, slow in triples]
        # Else no result is right, and none needs memory beside the exact one.
        return instead, jnp.logical_not(is_right)

    # A loop of one iteration or none: under `vmap`, `lax.cond` would always run both branches.
    is_right = reduce(jnp.logical_and, map(jnp.all, trusted))
    state: tuple[list[Any], Any] = parallel, is_right
    return lax.while_loop(lambda state: ~state[1], run_exactly, state)[0]


def all_finite(leaves: Sequence[Any]) -> Any:
    """Whether all numbers are finite."""
    return reduce(jnp.logical_and, (jnp.all(jnp.isfinite(leaf)) for leaf in leaves), jnp.bool_(True))
