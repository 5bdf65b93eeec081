"""Forms that are parallel in time, with the loop in reserve.

Such a form multiplies by zeros where the loop selects, and its products of many steps may overflow where no step does.
An infinity or NaN then reaches steps, rows and gradients that do not depend on it. But sums and products never make a
finite number of one that is not: if all results are finite, so is all that they are made of, and they are those of the
loop. Else the steps run one by one.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.analysis.leaves import places, replace_at
from rnnscan.engine.loops.flat_function import is_zero
from rnnscan.engine.loops.linear_tangents import linear_tangents, vjp_of_function
from rnnscan.engine.loops.own_derivative import with_derivative


ResultsT = TypeVar("ResultsT")


def or_by_steps(parallel: Callable[..., ResultsT], by_steps: Callable[..., ResultsT]) -> Callable[..., ResultsT]:
    """A function that runs in parallel, and step by step where a result is not finite. So do its derivatives.

    Args:
        parallel: a function of pytrees, made of sums, products and selections. It must hold no array of a trace.
        by_steps: the same function by a loop.
    """

    def run(*arguments: Any) -> Any:
        results = parallel(*arguments)
        return replaced_unless(all_finite(results), results, partial(by_steps, *arguments))

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        results = or_by_steps(parallel, by_steps)(*primals)
        leaves = jax.tree.leaves(tangents, is_leaf=is_zero)
        return results, linear_tangents(primals, results, leaves, jvp_rule, vjp_rule)

    def jvp_rule(primals: Any, wanted: list[bool], tangents: list[Any]) -> list[Any]:
        both = (partial(_jvp_of_function, function, wanted) for function in (parallel, by_steps))
        return or_by_steps(*both)(primals, tangents)

    def vjp_rule(primals: Any, wanted: list[bool], cotangents: list[Any]) -> list[Any]:
        both = (partial(vjp_of_function, function, wanted) for function in (parallel, by_steps))
        return or_by_steps(*both)(primals, cotangents)

    return with_derivative(run, differentiate)


def all_finite(results: Any) -> Any:
    """Whether all numbers of a pytree are finite."""
    leaves = [leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return reduce(jnp.logical_and, (jnp.all(jnp.isfinite(leaf)) for leaf in leaves), jnp.bool_(True))


def replaced_unless(condition: Any, results: Any, other: Callable[[], Any]) -> Any:
    """The results where a condition holds, else those of another function, which runs only then.

    By a loop of one iteration or none: under `vmap`, `lax.cond` would always run both branches.
    """

    def run(state: Any) -> tuple[Any, Any]:
        results, condition = state
        instead = jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), other(), results)
        return instead, jnp.ones_like(condition)

    return lax.while_loop(lambda state: ~state[1], run, (results, condition))[0]


def _jvp_of_function(function: Callable[..., Any], wanted: list[bool], primals: Any, tangents: list[Any]) -> list[Any]:
    """The tangents of the float results of a function."""
    leaves, structure = jax.tree.flatten(primals)
    moving = places(wanted)

    def results(*moving_leaves: Any) -> list[Any]:
        whole = jax.tree.unflatten(structure, replace_at(leaves, moving, moving_leaves))
        return [leaf for leaf in jax.tree.leaves(function(*whole)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]

    return jax.jvp(results, [leaves[index] for index in moving], tangents)[1]
