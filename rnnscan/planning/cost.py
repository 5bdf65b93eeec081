"""The cost of a step in operations: of its forward pass, its backward pass, and recomputation."""

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import jax

from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.ir.jaxprs import all_equations, inner_jaxprs
from rnnscan.ir.opened import opened
from rnnscan.ir.traits import Kind, traits_of
from rnnscan.ir.work import flops_of_product


# Matrix products are bound by arithmetic, other operations by memory. These weights are rough and only order the
# choices; `plan(measure=True)` measures instead.
_ELEMENTWISE = 8
_FUNCTION = 60
# By data sheets, not measured: a link to the host moves 50 GB/s, and a GPU multiplies at 50 TFLOP/s.
_MOVED_BYTE = 1000
# The iterations of Newton's method for a chunk. Trained cells take 3 to 5, and 15 to 20 with the diagonal alone.
_ITERATIONS = {"elementwise": 4, "dense": 16}


def forward_cost(step: Callable[[Any, Any, Any], Any], *arguments: Any) -> int | float:
    """Count the weighted operations of one step in its jaxpr.

    Args:
        step: `(params, carry, x) -> (carry, y)`.
        arguments: its arguments, as arrays or `jax.ShapeDtypeStruct`.

    Returns:
        Operations, in units of a multiplication in a matrix product.
    """
    return _cost(step, *arguments)


def training_cost(step: Callable[[Any, Any, Any], Any], kept: Iterable[str], *arguments: Any) -> int | float:
    """Count the weighted operations of one step, its backward pass, and recomputation.

    Args:
        step: `(params, carry, x) -> (carry, y)`.
        kept: the names to keep; everything else is recomputed.
        arguments: its arguments.

    Returns:
        Operations, in units of a multiplication in a matrix product.
    """
    policy = jax.checkpoint_policies.save_only_these_names(*kept)

    def loss(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(jax.checkpoint(step, policy=policy)(*arguments))
        return sum(leaf.sum() for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating))

    gradient = jax.grad(loss, argnums=tuple(range(len(arguments))), allow_int=True)
    return _cost(gradient, *arguments)


def solving_cost(recurrence: Recurrence) -> int | float:
    """Count the weighted operations of one step of the iterations that solve a loop, as many as are usual."""
    assert recurrence.newton is not None
    return min(_ITERATIONS[recurrence.kind], recurrence.newton.max_iterations) * iteration_cost(recurrence)


def iteration_cost(recurrence: Recurrence) -> int | float:
    """Count the weighted operations of one step of an iteration.

    It evaluates the loop with its Jacobian, and runs a linear recurrence as an associative scan, which composes two
    steps about twice as often as there are steps.
    """
    size = len(recurrence.cycle.leaves)
    compose = _ELEMENTWISE * 2 * (size**3 + size**2) * prod(recurrence.cycle.leaves[0].shape)
    return _cost(partial(recurrence.cycle.with_jacobian, of_values=True), *_types(recurrence)) + 2 * compose


def loop_cost(recurrence: Recurrence) -> int | float:
    """Count the weighted operations of one step of a loop that is solved, where it runs step by step."""
    return _cost(recurrence.cycle.step, *_types(recurrence))


def _types(recurrence: Recurrence) -> tuple[list[Any], list[Any]]:
    leaves, reads = (
        [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        for values in (recurrence.cycle.leaves, recurrence.cycle.reads)
    )
    return leaves, reads


def offload_cost(step: Callable[[Any, Any, Any], Any], offloaded: Iterable[str], *arguments: Any) -> int:
    """The cost of moving named values of one step to host memory and back.

    Args:
        step: `(params, carry, x) -> (carry, y)`.
        offloaded: the names.
        arguments: its arguments.

    Returns:
        Operations, in units of a multiplication in a matrix product.
    """
    sizes: dict[str, int] = dict.fromkeys(offloaded, 0)

    for equation in all_equations(jax.make_jaxpr(step)(*arguments).jaxpr):
        primitive, params = opened(equation)
        if primitive.name == "name" and params["name"] in sizes:
            aval = equation.outvars[0].aval
            sizes[params["name"]] += prod(aval.shape) * aval.dtype.itemsize
    return 2 * _MOVED_BYTE * sum(sizes.values())


def _cost(function: Callable[..., Any], *arguments: Any) -> int | float:
    return _jaxpr_cost(jax.make_jaxpr(function)(*arguments).jaxpr)


def _jaxpr_cost(jaxpr: Any) -> int | float:
    return sum(map(_equation_cost, jaxpr.eqns))


def _equation_cost(equation: Any) -> int | float:
    bodies = list(inner_jaxprs(equation.params))
    if bodies:
        return equation.params.get("length", 1) * max(map(_jaxpr_cost, bodies))
    name, traits = equation.primitive.name, traits_of(equation.primitive.name)
    if traits.kind is Kind.PRODUCT:
        shapes = [variable.aval.shape for variable in equation.invars]
        return flops_of_product(name, shapes, equation.outvars[0].aval.shape, equation.params)
    elements = sum(prod(variable.aval.shape) for variable in equation.outvars)
    return elements * (_FUNCTION if traits.is_transcendental else _ELEMENTWISE)
