"""Activations that a cell's configuration can name, so that it can be compared, pickled and shown."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan._messages import listing, nearest


Activation: TypeAlias = str | Callable[[Array], Array]


def hard_sigmoid(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """A sigmoid of three straight lines.

        min(max(0.2 z + 0.5, 0), 1)

    This is the one of DL4J, of ONNX's defaults and of Keras before version 3. The one of torch and of Keras since,
    `z / 6 + 0.5`, is `jax.nn.hard_sigmoid`.

    Args:
        z: any shape.

    Returns:
        The like of z, between 0 and 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells import activations
        >>> [round(float(y), 2) for y in activations.hard_sigmoid(jnp.array([-3.0, 0.0, 1.0]))]
        [0.0, 0.5, 0.7]

    Source: Courbariaux et al. 2015, "BinaryConnect", section 2.2, with the slope that Theano had.
    """
    return jnp.clip(0.2 * z + 0.5, 0, 1)


def identity(z: Array) -> Array:
    """What it is given."""
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
    """Apply an activation that `check_activation` has let pass."""
    return ACTIVATIONS[activation](z) if isinstance(activation, str) else activation(z)


def check_activation(cell: str, argument: str, activation: Any) -> None:
    """Refuse what is neither a known name nor a function.

    Raises:
        ValueError: if it is a name that is not known.
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
