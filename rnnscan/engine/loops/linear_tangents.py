"""The tangents of a function as one linear call, which forward mode runs and reverse mode transposes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax.custom_derivatives import SymbolicZero

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.keys import without_keys
from rnnscan.engine.loops.flat_function import is_zero
from rnnscan.engine.loops.linear_call import LinearMap, linear_call


# (residuals, whether each argument has a tangent, those tangents) -> the tangent of each result that has one
JvpRule: TypeAlias = Callable[[Any, list[bool], list[Any]], list[Any]]
# (residuals, whether each argument has a tangent, a cotangent or None for each result) -> cotangents of those arguments
VjpRule: TypeAlias = Callable[[Any, list[bool], list[Any]], list[Any]]


def linear_tangents(
    residuals: Any,
    results: Any,
    tangents: Sequence[Any],
    jvp_rule: JvpRule,
    vjp_rule: VjpRule,
    moving_results: Sequence[bool] | None = None,
) -> Any:
    """The tangents of the results of a function, for the rule of `with_derivative`.

    Args:
        residuals: a pytree of the arrays that the derivative needs.
        results: the results of the function, any pytree.
        tangents: for each leaf of its arguments the tangent, or a symbolic zero.
        jvp_rule: the derivative. It must hold no array, because JAX caches it.
        vjp_rule: its transpose; the same.
        moving_results: for each leaf of the results whether it has a tangent; None: all floats have.

    Returns:
        A pytree like `results`, with symbolic zeros for the others.
    """
    wanted = have_tangents(tangents)
    moving = [leaf for leaf, is_wanted in zip(tangents, wanted, strict=True) if is_wanted]
    flat, restore = without_keys(residuals)
    leaves, results_structure = jax.tree.flatten(results)
    flags = [is_float(leaf) for leaf in leaves] if moving_results is None else moving_results
    places = [index for index, moves in enumerate(flags) if moves]
    count = len(leaves)
    whole: list[Any] = [SymbolicZero(jax.typeof(leaf).to_tangent_aval()) for leaf in leaves]
    if not places:
        return jax.tree.unflatten(results_structure, whole)

    def apply(residuals: list[Any], tangents: list[Any]) -> list[Any]:
        return jvp_rule(restore(residuals), wanted, tangents)

    def transpose(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
        ct_results: list[Any] = [None] * count
        for index, cotangent in zip(places, cotangents, strict=True):
            ct_results[index] = cotangent
        return vjp_rule(restore(residuals), wanted, ct_results)

    types = tuple(jax.typeof(leaves[index]) for index in places)
    result_tangents = linear_call(LinearMap(apply, transpose, len(flat), types), flat, moving)
    for index, tangent in zip(places, result_tangents, strict=True):
        whole[index] = tangent
    return jax.tree.unflatten(results_structure, whole)


def have_tangents(tangents: Sequence[Any]) -> list[bool]:
    """Whether each of some tangents is one, and no zero."""
    return [not is_zero(leaf) and leaf.dtype != jax.dtypes.float0 for leaf in tangents]
