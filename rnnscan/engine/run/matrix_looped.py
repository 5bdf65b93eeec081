"""A window of steps that runs forward step by step, and in chunkwise form for its derivatives."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.leaves import places, replace_at
from rnnscan.engine.loops.flat_function import is_zero
from rnnscan.engine.loops.linear_tangents import linear_tangents
from rnnscan.engine.loops.own_derivative import with_derivative


# (constants, carry, xs) -> (carry, ys), all lists of leaves
Run: TypeAlias = Callable[[Any, Any, Any], tuple[list[Any], list[Any]]]


def looped(loop: Run, in_chunks: Run) -> Run:
    """The loop, with the derivatives of the chunkwise form, which needs no more than its arguments.

    Args:
        loop: runs the steps one by one.
        in_chunks: the same in chunkwise form. Neither may hold an array of a trace.
    """

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        results = loop(*primals)
        leaves = jax.tree.leaves(tangents, is_leaf=is_zero)
        return results, linear_tangents(primals, results, leaves, jvp_rule, vjp_rule)

    def jvp_rule(primals: Any, wanted: list[bool], tangents: list[Any]) -> list[Any]:
        leaves, structure = jax.tree.flatten(primals)
        moving = places(wanted)

        def of_moving(*moving_leaves: Any) -> list[Any]:
            results = in_chunks(*jax.tree.unflatten(structure, replace_at(leaves, moving, moving_leaves)))
            return [*filter(is_float, jax.tree.leaves(results))]

        return jax.jvp(of_moving, [leaves[index] for index in moving], list(tangents))[1]

    def vjp_rule(primals: Any, wanted: list[bool], cotangents: list[Any]) -> list[Any]:
        leaves, structure = jax.tree.flatten(primals)
        moving = places(wanted)
        ct_results = {index: leaf for index, leaf in enumerate(cotangents) if leaf is not None}

        def read(*moving_leaves: Any) -> list[Any]:
            results = jax.tree.leaves(
                in_chunks(*jax.tree.unflatten(structure, replace_at(leaves, moving, moving_leaves)))
            )
            return [results[index] for index in ct_results]

        _, vjp = jax.vjp(read, *(leaves[index] for index in moving))
        return list(vjp([*ct_results.values()]))

    return with_derivative(loop, differentiate)
