"""The tangents of a function as one linear call, which forward mode runs and reverse mode transposes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax.custom_derivatives import SymbolicZero

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.keys import without_keys
from rnnscan.engine.analysis.leaves import places, replace_at
from rnnscan.engine.loops.flat_function import is_zero
from rnnscan.engine.loops.linear_call import LinearMap, linear_call


# (residuals, whether each argument has a tangent, those tangents) -> the tangents of `moving_results`
JvpRule: TypeAlias = Callable[[Any, list[bool], list[Any]], list[Any]]
# (residuals, whether each argument has a tangent, a cotangent or None for each result) -> cotangents of those arguments
VjpRule: TypeAlias = Callable[[Any, list[bool], list[Any]], list[Any]]
# (whether each argument has a tangent, whether each result has a cotangent) -> whether each argument has a cotangent
Cotangents: TypeAlias = Callable[[list[bool], list[bool]], Sequence[bool]]


def linear_tangents(
    residuals: Any,
    results: Any,
    tangents: Sequence[Any],
    jvp_rule: JvpRule,
    vjp_rule: VjpRule,
    moving_results: Sequence[bool] | None = None,
    with_cotangents: Cotangents | None = None,
) -> Any:
    """The tangents of the results of a function, for the rule of `with_derivative`.

    Args:
        residuals: a pytree of the arrays that the derivative needs.
        results: the results of the function, any pytree.
        tangents: for each leaf of its arguments the tangent, or a symbolic zero.
        jvp_rule: the derivative. It must hold no array, because JAX caches it.
        vjp_rule: its transpose; the same.
        moving_results: for each leaf of the results whether it has a tangent; None: all floats have.
        with_cotangents: finds the arguments that have a cotangent; None: all may have one.

    Returns:
        A pytree like `results`, with symbolic zeros for the others.
    """
    flat, restore = without_keys(residuals)
    leaves, results_structure = jax.tree.flatten(results)
    flags = [is_float(leaf) for leaf in leaves] if moving_results is None else moving_results
    moving = places(flags)
    zeros = [SymbolicZero(jax.typeof(leaf).to_tangent_aval()) for leaf in leaves]
    if not moving:
        return jax.tree.unflatten(results_structure, zeros)

    def linear_map(wanted: list[bool], results: list[int]) -> LinearMap:
        """The map from the wanted tangents to those of some results."""

        def apply(residuals: list[Any], tangents: list[Any]) -> list[Any]:
            of_moving = dict(zip(moving, jvp_rule(restore(residuals), wanted, tangents), strict=True))
            return [of_moving[index] for index in results]

        def transpose(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
            return vjp_rule(restore(residuals), wanted, replace_at([None] * len(leaves), results, cotangents))

        def only(used: list[bool]) -> tuple[LinearMap, list[bool]]:
            assert with_cotangents is not None
            read = [results[index] for index in places(used)]
            have_cotangents = with_cotangents(wanted, [index in read for index in range(len(leaves))])
            both = [is_wanted and needs for is_wanted, needs in zip(wanted, have_cotangents, strict=True)]
            return linear_map(both, read), [both[index] for index in places(wanted)]

        types = tuple(jax.typeof(leaves[index]) for index in results)
        return LinearMap(apply, transpose, len(flat), types, with_cotangents and only)

    wanted = have_tangents(tangents)
    result_tangents = linear_call(linear_map(wanted, moving), flat, [tangents[index] for index in places(wanted)])
    return jax.tree.unflatten(results_structure, replace_at(zeros, moving, result_tangents))


def have_tangents(tangents: Sequence[Any]) -> list[bool]:
    """Whether each of some tangents is one, and no zero."""
    return [not is_zero(leaf) and leaf.dtype != jax.dtypes.float0 for leaf in tangents]
