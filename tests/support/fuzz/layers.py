"""Transformations of JAX around a function of two lists of floats, so that any order of them can be built."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


# (mapped, shared) -> {"loss": a pytree of floats, "rest": any pytree of arrays}
Function = Callable[[list[Any], list[Any]], dict[str, Any]]
# The name of the axis that "vmap by name" gives to its rows.
AXIS = "rows"


def is_inexact(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def total(function: Function, mapped: list[Any], shared: list[Any]) -> tuple[Any, Any]:
    """The sum of all floats in the loss of a function, and the rest."""
    result = function(mapped, shared)
    leaves = filter(is_inexact, jax.tree.leaves(result["loss"]))
    return sum((jnp.sum(leaf) for leaf in leaves), jnp.zeros(())), result["rest"]


def _in_cond(function: Function) -> Function:
    def run(mapped: list[Any], shared: list[Any]) -> Any:
        def zeros(*arguments: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, function(*arguments))

        return lax.cond(jnp.asarray(True), function, zeros, mapped, shared)

    return run


def _in_scan(function: Function) -> Function:
    def run(mapped: list[Any], shared: list[Any]) -> Any:
        _, stacked = lax.scan(lambda carry, _: (carry, function(mapped, shared)), 0.0, None, length=2)
        return jax.tree.map(lambda leaf: leaf[1], stacked)

    return run


WRAPPERS: dict[str, Callable[[Function], Function]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "policy": partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable),
    "cond": _in_cond,
    "scan": _in_scan,
}


def _grad(function: Function) -> Function:
    def run(mapped: list[Any], shared: list[Any]) -> Any:
        (value, rest), gradients = jax.value_and_grad(partial(total, function), (0, 1), has_aux=True)(mapped, shared)
        return {"loss": gradients, "rest": (value, rest)}

    return run


def _along(mapped: list[Any], shared: list[Any]) -> Any:
    return jax.tree.map(lambda leaf: jnp.cos(leaf) + leaf, (mapped, shared))


def _jvp(function: Function) -> Function:
    def run(mapped: list[Any], shared: list[Any]) -> Any:
        directions = _along(mapped, shared)
        loss, tangent, rest = jax.jvp(partial(_split, function), (mapped, shared), directions, has_aux=True)
        return {"loss": (loss, tangent), "rest": rest}

    return run


def _linearize(function: Function) -> Function:
    def run(mapped: list[Any], shared: list[Any]) -> Any:
        loss, linear, rest = jax.linearize(partial(_split, function), mapped, shared, has_aux=True)
        return {"loss": (loss, linear(*_along(mapped, shared))), "rest": rest}

    return run


def _split(function: Function, mapped: list[Any], shared: list[Any]) -> tuple[Any, Any]:
    result = function(mapped, shared)
    return result["loss"], result["rest"]


def _jacfwd(function: Function) -> Function:
    def run(mapped: list[Any], shared: list[Any]) -> Any:
        jacobians, rest = jax.jacfwd(partial(_split, function), (0, 1), has_aux=True)(mapped, shared)
        return {"loss": jacobians, "rest": rest}

    return run


def _hessian(function: Function) -> Function:
    def run(mapped: list[Any], shared: list[Any]) -> Any:
        hessians, rest = jax.hessian(partial(total, function), (0, 1), has_aux=True)(mapped, shared)
        return {"loss": hessians, "rest": rest}

    return run


def _jvp_of_grad(function: Function) -> Function:
    return _jvp(_grad(function))


DERIVATIVES: dict[str, Callable[[Function], Function]] = {
    "grad": _grad,
    "jvp": _jvp,
    "linearize": _linearize,
    "jacfwd": _jacfwd,
    "hessian": _hessian,
    "jvp of grad": _jvp_of_grad,
}
MAPS: dict[str, Callable[[Function], Function]] = {
    "vmap": partial(jax.vmap, in_axes=(0, None)),
    "vmap by name": partial(jax.vmap, in_axes=(0, None), axis_name=AXIS),
}
LAYERS = {**WRAPPERS, **DERIVATIVES, **MAPS}
# How often a transformation differentiates.
DEGREES = {"grad": 1, "jvp": 1, "linearize": 1, "jacfwd": 1, "hessian": 2, "jvp of grad": 2}


def transformed(function: Function, layers: list[str]) -> Function:
    """A function under transformations, from the inside to the outside."""
    for layer in layers:
        function = LAYERS[layer](function)
    return function
