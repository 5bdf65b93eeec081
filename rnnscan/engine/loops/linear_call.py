"""A call that is linear in its tangents, with a custom transpose.

The rule of a function (`own_derivative.py`) takes its tangents from this primitive. Forward mode runs `apply`. Reverse
mode runs `transpose`, and never traces `apply`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir, partial_eval

from rnnscan.engine.analysis.leaves import as_arrays, places
from rnnscan.engine.analysis.probe import no_axis_is_mapped
from rnnscan.ir.invalid_values import run_checked


# (residuals, tangents) -> tangents of the results
Apply: TypeAlias = Callable[[list[Any], list[Any]], list[Any]]
# (residuals, cotangents of the results, None for zeros) -> cotangents of the tangents, None for zeros
Transpose: TypeAlias = Callable[[list[Any], list[Any]], list[Any]]


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A family of linear maps, one for each value of the residuals.

    Attributes:
        apply: the map.
        transpose: its transpose.
        residuals: the number of residuals.
        results: the types of the results.
        only: for each result whether it is read -> the map of these, and for each tangent whether it reads that one;
            None: the map is needed as a whole.
    """

    apply: Apply
    transpose: Transpose
    residuals: int
    results: tuple[Any, ...]
    only: Callable[[list[bool]], tuple["LinearMap", list[bool]]] | None = None

    def cut(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The residuals and the tangents among the operands of a call."""
        return list(leaves[: self.residuals]), list(leaves[self.residuals :])


def linear_call(linear_map: LinearMap, residuals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Apply a linear map, so that JAX can transpose, batch and differentiate the call.

    Args:
        linear_map: the map.
        residuals: the operands that the map depends on nonlinearly.
        tangents: the operands in which it is linear.

    Returns:
        The tangents of the results.
    """
    return _linear_call.bind(*residuals, *tangents, linear_map=linear_map)


_linear_call = core.Primitive("rnnscan_linear_call")
_linear_call.multiple_results = True


def _apply(*operands: Any, linear_map: LinearMap) -> list[Any]:
    results: list[Any] = run_checked(linear_map.apply, *linear_map.cut(as_arrays(operands)))
    return results


def _types(*_: Any, linear_map: LinearMap) -> tuple[Any, ...]:
    return linear_map.results


_linear_call.def_impl(_apply)
_linear_call.def_abstract_eval(_types)
mlir.register_lowering(_linear_call, mlir.lower_fun(_apply, multiple_results=True))


def _differentiate(primals: Any, tangents: Any, *, linear_map: LinearMap) -> tuple[list[Any], list[Any]]:
    """The derivative is the same map for the tangents, and that of `apply` for the residuals."""
    primals = as_arrays(primals)
    results = linear_call(linear_map, *linear_map.cut(primals))
    residuals, linear_operands = linear_map.cut(primals)
    residual_tangents, operand_tangents = linear_map.cut(tangents)
    parts = []
    if not all(map(_is_zero, operand_tangents)):
        parts.append(linear_call(linear_map, residuals, [ad.instantiate_zeros(leaf) for leaf in operand_tangents]))
    moving = [index for index, leaf in enumerate(residual_tangents) if not _is_zero(leaf)]
    if moving:

        def of_residuals(*moving_residuals: Any) -> list[Any]:
            whole = dict(enumerate(residuals)) | dict(zip(moving, moving_residuals, strict=True))
            return linear_map.apply(list(whole.values()), linear_operands)

        directions = [residual_tangents[index] for index in moving]
        parts.append(jax.jvp(of_residuals, [residuals[index] for index in moving], directions)[1])
    return results, [jnp.add(*pair) for pair in zip(*parts, strict=True)] if len(parts) == 2 else parts[0]


ad.primitive_jvps[_linear_call] = _differentiate


def _transpose(cotangents: Any, *operands: Any, linear_map: LinearMap) -> list[Any]:
    residuals, tangents = linear_map.cut(as_arrays(operands))
    ct_results = [None if _is_zero(leaf) else leaf for leaf in cotangents]
    ct_operands = run_checked(linear_map.transpose, residuals, ct_results)
    # The others are zeros: instantiated with these, or of tangents that no result with a cotangent depends on.
    wanted = [
        leaf if ad.is_undefined_primal(tangent) else None for leaf, tangent in zip(ct_operands, tangents, strict=True)
    ]
    return [None] * len(residuals) + wanted


ad.primitive_transposes[_linear_call] = _transpose


def _batch(axis: Any, operands: Any, axes: Any, *, linear_map: LinearMap) -> tuple[list[Any], list[int | None]]:
    operands = as_arrays(operands)
    if no_axis_is_mapped(axis, axes):
        return linear_call(linear_map, *linear_map.cut(operands)), [None] * len(linear_map.results)
    batched = _batched(linear_map, axis, *linear_map.cut(axes))
    return linear_call(batched, *batched.cut(operands)), [0] * len(batched.results)


def _batched(
    linear_map: LinearMap, axis: Any, residual_axes: Sequence[int | None], tangent_axes: Sequence[int | None]
) -> LinearMap:
    """The map under `jax.vmap`."""
    mapped = {"axis_size": axis.size, "axis_name": axis.name, "spmd_axis_name": axis.spmd_name}

    def apply(residuals: list[Any], tangents: list[Any]) -> list[Any]:
        return jax.vmap(linear_map.apply, in_axes=([*residual_axes], [*tangent_axes]), **mapped)(residuals, tangents)

    def transpose(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
        ct_operands = jax.vmap(linear_map.transpose, in_axes=([*residual_axes], 0), **mapped)(residuals, cotangents)
        return [_unbatched(leaf, tangent_axis) for leaf, tangent_axis in zip(ct_operands, tangent_axes, strict=True)]

    def only(used: list[bool]) -> tuple[LinearMap, list[bool]]:
        assert linear_map.only is not None
        smaller, needed = linear_map.only(used)
        return _batched(smaller, axis, residual_axes, [tangent_axes[index] for index in places(needed)]), needed

    results = tuple(core.unmapped_aval(axis.size, 0, result, axis.explicit_mesh_axis) for result in linear_map.results)
    return LinearMap(apply, transpose, linear_map.residuals, results, linear_map.only and only)


def _drop_unused(used: list[bool], *others: Any) -> tuple[list[bool], Any]:
    """Dead code elimination: a tangent that no result that is read depends on is no operand.

    A loop around the call would carry it, and a cotangent of explicit zeros for it.
    """
    equation = others[-1]  # From jax 0.12 on the references that are read come before it.
    linear_map, operands = equation.params["linear_map"], len(equation.invars)
    if not any(used):
        return [False] * operands, None
    if linear_map.only is None:
        return [True] * operands, equation
    smaller, needed = linear_map.only(used)
    flags = [*[True] * linear_map.residuals, *needed]
    return flags, equation.replace(
        invars=[equation.invars[index] for index in places(flags)],
        outvars=[equation.outvars[index] for index in places(used)],
        params={"linear_map": smaller},
    )


partial_eval.dce_rules[_linear_call] = _drop_unused


# This rule knows the axis name, for cells with collectives over it.
batching.fancy_primitive_batchers[_linear_call] = _batch


def _unbatched(cotangent: Any, axis: int | None) -> Any:
    """The cotangent of an operand that was batched along an axis, or shared by the batch; None for zero."""
    if cotangent is None:
        return None
    return jnp.sum(cotangent, 0) if axis is None else jnp.moveaxis(cotangent, 0, axis)


def _is_zero(leaf: Any) -> bool:
    return isinstance(leaf, ad.Zero)
