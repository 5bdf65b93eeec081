"""Activations by name, so that cells can be compared, pickled and printed."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan._util.messages import listing, nearest


Activation: TypeAlias = str | Callable[[Array], Array]


def hard_sigmoid(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """A piecewise linear sigmoid.

        min(max(0.2 z + 0.5, 0), 1)

    DL4J, ONNX by default, and Keras before version 3 use this slope. Torch and Keras 3 use `z / 6 + 0.5`, which is
    `jax.nn.hard_sigmoid`.

    Args:
        z: any shape.

    Returns:
        An array of the same shape, between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells import activations
        >>> [round(float(y), 2) for y in activations.hard_sigmoid(jnp.array([-3.0, 0.0, 1.0]))]
        [0.0, 0.5, 0.7]

    Source: Courbariaux et al. 2015, "BinaryConnect: Training Deep Neural Networks with binary weights during
    propagations", section 2.2, with the slope of Theano.
    """
    return jnp.clip(0.2 * z + 0.5, 0, 1)


def identity(z: Array) -> Array:
    """Return the argument."""
    return z


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "hard_sigmoid": hard_sigmoid,
    "hard_tanh": jax.nn.hard_tanh,
    "identity": identity,
    "leaky_relu": jax.nn.leaky_relu,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "tanh": jnp.tanh,
}


def activate(activation: Activation, z: Array) -> Array:
    """Apply an activation, a known name or a function."""
    return ACTIVATIONS[activation](z) if isinstance(activation, str) else activation(z)


def check_activation(cell: str, argument: str, activation: Any) -> None:
    """Check that an activation is a known name or a function.

    Raises:
        ValueError: if the name is unknown.
        TypeError: if it is neither a string nor callable.
    """
    if isinstance(activation, str) and activation not in ACTIVATIONS:
        raise ValueError(
            f"{cell}: `{argument}` must be a function or one of {listing(ACTIVATIONS)}; got {activation!r}."
            f"{nearest(activation, ACTIVATIONS)}"
        )
    if not isinstance(activation, str) and not callable(activation):
        raise TypeError(
            f"{cell}: `{argument}` must be a function or one of {listing(ACTIVATIONS)}; got {activation!r}."
        )
