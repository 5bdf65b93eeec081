"""Rules of primitives: tangents with JAX's symbolic zeros, and the rules that are JAX's own for a function."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax.custom_batching import custom_vmap
from jax.extend import core
from jax.interpreters import ad, batching

from rnnscan.ir.leaves import as_arrays, places, replace_at


# function of arrays -> function of arrays
Transform: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
# operands -> results
Function: TypeAlias = Callable[..., list[Any]]
# (axis, operands, their axes of rows, **parameters) -> results and their axes of rows
BatchRule: TypeAlias = Callable[..., tuple[Sequence[Any], Sequence[int | None]]]


def zero(leaf: Any) -> ad.Zero:
    """A symbolic zero as the tangent of a value."""
    return ad.Zero(jax.typeof(leaf).to_tangent_aval())


def have_tangents(tangents: Sequence[Any]) -> list[bool]:
    """Whether each of some tangents is one, and no zero."""
    return [not isinstance(leaf, ad.Zero) and leaf.dtype != jax.dtypes.float0 for leaf in tangents]


def jvp(function: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """`jax.jvp`, with symbolic zeros among the tangents."""
    active = places(have_tangents(tangents))
    flags: list[bool] = []

    def run(*active_leaves: Any) -> list[Any]:
        results = function(*replace_at(primals, active, active_leaves))
        # JAX unpacks results that have no tangent.
        flags.extend(isinstance(leaf, ad.JVPTracer) for leaf in results)
        return results

    results, dots = jax.jvp(run, [primals[index] for index in active], [tangents[index] for index in active])
    rows = zip(flags, results, dots, strict=True)
    return results, [dot if is_active else zero(leaf) for is_active, leaf, dot in rows]


def jvp_rule(
    function: Function, primals: Sequence[Any], tangents: Sequence[Any], bind: Function | None = None
) -> tuple[list[Any], list[Any]]:
    """The rule of `jax.jvp`. `bind` makes the equation itself, where nothing has a tangent."""
    primals, tangents = as_arrays(primals), as_arrays(tangents)
    if not any(have_tangents(tangents)):
        results = (bind or function)(*primals)
        return results, [*map(zero, results)]
    return jvp(function, primals, tangents)


def transpose_rule(function: Function, cotangents: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The rule of a transpose, for a function that is linear in its unknown operands."""
    leaves = as_arrays(operands)
    unknown = [index for index, operand in enumerate(leaves) if ad.is_undefined_primal(operand)]

    def linear(*some: Any) -> list[Any]:
        return function(*replace_at(leaves, unknown, some))

    transposed = jax.linear_transpose(linear, *(leaves[index].aval for index in unknown))
    return replace_at([None] * len(leaves), unknown, transposed([*map(ad.instantiate_zeros, cotangents)]))


def batch_by(primitive: core.Primitive, rule: BatchRule) -> None:
    """Register a rule of `jax.vmap`, which knows the axis name, for cells with collectives over it."""

    def batch(
        axis: Any, operands: Sequence[Any], axes: Sequence[int | None], **params: Any
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        leaves = as_arrays(operands)
        if no_axis_is_mapped(axis, axes):
            results = primitive.bind(*leaves, **params)
            return results, [None] * len(results)
        return rule(axis, leaves, axes, **params)

    batching.fancy_primitive_batchers[primitive] = batch


def over_axis(axis: Any, function: Callable[..., Any], axes: Sequence[int | None], out_axes: Any = 0) -> Any:
    """A function under `jax.vmap`, as a rule of `fancy_primitive_batchers` is given it."""
    options = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
    return jax.vmap(function, in_axes=tuple(axes), out_axes=out_axes, **options)


def mapped_results(vmap: Transform, function: Callable[..., Sequence[Any]], types: Sequence[Any]) -> list[bool]:
    """Which results of a function does `jax.vmap` map?

    Args:
        vmap: `jax.vmap` with its axes.
        function: returns a flat list of arrays.
        types: the types of the arguments of `vmap(function)`.

    Returns:
        For each result whether it is mapped.
    """
    are_mapped: list[bool] = []

    @custom_vmap
    def probe(results: list[Any]) -> list[Any]:
        return results

    @probe.def_vmap
    def note(_: int, flags: list[list[bool]], results: list[Any]) -> tuple[list[Any], list[bool]]:
        are_mapped[:] = flags[0]
        return results, flags[0]

    def probed(*operands: Any) -> list[Any]:
        results = [*function(*operands)]
        # The rule is not asked if no result is mapped.
        are_mapped[:] = [False] * len(results)
        return list(probe(results))

    jax.make_jaxpr(vmap(probed))(*types)
    return are_mapped


def no_axis_is_mapped(axis: Any, axes: Sequence[int | None]) -> bool:
    """Whether a rule of `fancy_primitive_batchers` has nothing to map.

    JAX asks it for operands without the axis too. Their results must not have it: `jax.jacfwd` of a `jax.jvp` rejects a
    value that has it. An axis without a name has a plain object for one (jax 0.10 to 0.12).
    """
    return all(operand_axis is None for operand_axis in axes) and type(axis.name) is object
