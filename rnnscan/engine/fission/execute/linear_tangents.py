"""The tangents of a `jax.custom_jvp` as one linear call, which forward mode runs and reverse mode transposes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from rnnscan._messages import is_float
from rnnscan.engine.fission.execute.linear_call import LinearMap, linear_call


# (residuals, whether each argument has a tangent, those tangents) -> the tangent of each float result
Push: TypeAlias = Callable[[Any, list[bool], list[Any]], list[Any]]
# (residuals, whether each argument has a tangent, a cotangent or None for each result) -> cotangents of those arguments
Pull: TypeAlias = Callable[[Any, list[bool], list[Any]], list[Any]]


def linear_tangents(residuals: Any, results: Any, tangents: Sequence[Any], push: Push, pull: Pull) -> Any:
    """The tangents of the results of a function, for `jax.custom_jvp.defjvp` with `symbolic_zeros=True`.

    Args:
        residuals: a pytree of the arrays that the derivative needs.
        results: the results of the function, any pytree.
        tangents: for each leaf of its arguments the tangent, or a symbolic zero.
        push: the derivative. It must hold no array, because JAX caches it.
        pull: its transpose; the same.

    Returns:
        A pytree like `results`. Integers and keys have symbolic zeros.
    """
    wanted = [not is_zero(leaf) and leaf.dtype != jax.dtypes.float0 for leaf in tangents]
    moving = [leaf for leaf, own in zip(tangents, wanted, strict=True) if own]
    flat, structure = jax.tree.flatten(residuals)
    leaves, results_structure = jax.tree.flatten(results)
    floats = [index for index, leaf in enumerate(leaves) if is_float(leaf)]
    count = len(leaves)

    def apply(residuals: list[Any], tangents: list[Any]) -> list[Any]:
        return push(jax.tree.unflatten(structure, residuals), wanted, tangents)

    def transpose(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
        given: list[Any] = [None] * count
        for index, cotangent in zip(floats, cotangents, strict=True):
            given[index] = cotangent
        return pull(jax.tree.unflatten(structure, residuals), wanted, given)

    types = tuple(jax.typeof(leaves[index]) for index in floats)
    made = linear_call(LinearMap(apply, transpose, len(flat), types), flat, moving)
    whole: list[Any] = [jax.custom_derivatives.SymbolicZero(jax.typeof(leaf).to_tangent_aval()) for leaf in leaves]
    for index, tangent in zip(floats, made, strict=True):
        whole[index] = tangent
    return jax.tree.unflatten(results_structure, whole)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is one of JAX's symbolic zeros."""
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)
