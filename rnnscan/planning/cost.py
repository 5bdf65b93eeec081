"""What a step costs in operations, of the forward pass and of the backward pass that computes some of it again."""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import jax
from jax.extend import core

from rnnscan.engine.fission.program import TRANSCENDENTAL


# A matrix product runs at the processor's full width, other operations at that of its memory. These weights are rough,
# and put choices in order only: `plan(measure=True)` measures instead.
_ELEMENTWISE = 8
_FUNCTION = 60
# A link to the host moves some 50 GB a second where a GPU multiplies at some 50 TFLOP/s; by data sheets, not measured.
_MOVED_BYTE = 1000


def forward_cost(step: Callable[[Any, Any, Any], Any], *arguments: Any) -> int | float:
    """The weighted operations of one step, counted in its jaxpr.

    Args:
        step: `(params, carry, x) -> (carry, y)`.
        arguments: its arguments, as arrays or `jax.ShapeDtypeStruct`.

    Returns:
        Operations, in those of a matrix product.
    """
    return _jaxpr_cost(jax.make_jaxpr(step)(*arguments).jaxpr)


def training_cost(step: Callable[[Any, Any, Any], Any], kept: Iterable[str], *arguments: Any) -> int | float:
    """The weighted operations of one step, of its backward pass, and of what that computes again.

    Args:
        step: `(params, carry, x) -> (carry, y)`.
        kept: the names that are kept; all else is computed again.
        arguments: its arguments.

    Returns:
        Operations, in those of a matrix product.
    """
    policy = jax.checkpoint_policies.save_only_these_names(*kept)

    def loss(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(jax.checkpoint(step, policy=policy)(*arguments))
        return sum(leaf.sum() for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating))

    gradient = jax.grad(loss, argnums=tuple(range(len(arguments))), allow_int=True)
    return _jaxpr_cost(jax.make_jaxpr(gradient)(*arguments).jaxpr)


def offload_cost(step: Callable[[Any, Any, Any], Any], offloaded: Iterable[str], *arguments: Any) -> int:
    """What moving named values of one step to the host's memory and back costs.

    Args:
        step: `(params, carry, x) -> (carry, y)`.
        offloaded: the names.
        arguments: its arguments.

    Returns:
        Operations, in those of a matrix product.
    """
    sizes: dict[str, int] = dict.fromkeys(offloaded, 0)

    def note(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "name" and equation.params["name"] in sizes:
                aval = equation.outvars[0].aval
                sizes[equation.params["name"]] += prod(aval.shape) * aval.dtype.itemsize
            for inner in _inner_jaxprs(equation):
                note(inner)

    note(jax.make_jaxpr(step)(*arguments).jaxpr)
    return 2 * _MOVED_BYTE * sum(sizes.values())


def _jaxpr_cost(jaxpr: Any) -> int | float:
    return sum(map(_equation_cost, jaxpr.eqns))


def _equation_cost(equation: Any) -> int | float:
    inner = _inner_jaxprs(equation)
    if inner:
        return equation.params.get("length", 1) * max(map(_jaxpr_cost, inner))
    made = sum(prod(variable.aval.shape) for variable in equation.outvars)
    primitive = equation.primitive.name
    if primitive == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * made * prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if primitive == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        return 2 * made * prod(kernel) / kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    return made * (_FUNCTION if primitive in TRANSCENDENTAL else _ELEMENTWISE)


def _inner_jaxprs(equation: Any) -> list[Any]:
    return [
        value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
        for param in equation.params.values()
        for value in (param if isinstance(param, tuple | list) else (param,))
        if isinstance(value, core.ClosedJaxpr | core.Jaxpr)
    ]
