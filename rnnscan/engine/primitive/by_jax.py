"""Rules of a primitive that are JAX's own for a function with the same results."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from rnnscan.engine.analysis.leaves import as_arrays, replace_at
from rnnscan.engine.analysis.probe import no_axis_is_mapped
from rnnscan.engine.loops.flat_function import is_zero, jvp
from rnnscan.engine.loops.linear_tangents import have_tangents


# operands -> results
Function = Callable[..., list[Any]]


def symbolic(tangents: Sequence[Any]) -> list[Any]:
    """Tangents, with symbolic zeros in place of those that a rule is given."""
    return [SymbolicZero(leaf.aval) if isinstance(leaf, ad.Zero) else leaf for leaf in as_arrays(tangents)]


def for_rule(tangents: Sequence[Any]) -> list[Any]:
    """Tangents, with the zeros that a rule returns in place of symbolic ones."""
    return [ad.Zero(leaf.aval) if is_zero(leaf) else leaf for leaf in tangents]


def zeros_for_rule(results: Sequence[Any]) -> list[Any]:
    """Zero tangents of results."""
    return [ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in results]


def jvp_rule(
    function: Function, primals: Sequence[Any], tangents: Sequence[Any], bind: Function | None = None
) -> tuple[list[Any], list[Any]]:
    """The rule of `jax.jvp`. `bind` makes the equation itself, where nothing has a tangent."""
    primals, dots = as_arrays(primals), symbolic(tangents)
    if not any(have_tangents(dots)):
        results = (bind or function)(*primals)
        return results, zeros_for_rule(results)
    results, result_dots = jvp(function, tuple(primals), tuple(dots))
    return list(results), for_rule(result_dots)


def transpose_rule(function: Function, cotangents: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The rule of a transpose, for a function that is linear in its unknown operands."""
    leaves = as_arrays(operands)
    unknown = [index for index, operand in enumerate(leaves) if ad.is_undefined_primal(operand)]

    def linear(*some: Any) -> list[Any]:
        return function(*replace_at(leaves, unknown, some))

    transposed = jax.linear_transpose(linear, *(leaves[index].aval for index in unknown))
    return replace_at([None] * len(leaves), unknown, transposed([*map(ad.instantiate_zeros, cotangents)]))


def vmap_rule(
    function: Function, axis: Any, operands: Sequence[Any], axes: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    """The rule of `jax.vmap`."""
    leaves, run = as_arrays(operands), partial(function, **params)
    if no_axis_is_mapped(axis, axes):
        results = run(*leaves)
        return results, [None] * len(results)
    options = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
    results = list(jax.vmap(run, in_axes=tuple(axes), **options)(*leaves))
    return results, [0] * len(results)
