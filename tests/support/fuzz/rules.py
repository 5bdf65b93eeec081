"""Functions with derivative rules of their own. Whoever differentiates what they compute gets another result."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def sine(value: Any) -> Any:
    """The sine without its derivative, which a rule adds: without the rule the derivative is zero.

    A rule of another function's derivative has no second derivatives of its own: those of JAX depend on the order.
    """
    return jnp.sin(lax.stop_gradient(value))


sine_with_jvp = jax.custom_jvp(sine)
sine_with_jvp.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0] * jnp.cos(primals[0])))


@jax.custom_vjp
def product_with_vjp(value: Any, other: Any) -> Any:
    return value * jnp.tanh(other)


# Not its derivative, on purpose: `rs.scan` does not differentiate it twice.
product_with_vjp.defvjp(
    lambda value, other: (value * jnp.tanh(other), other),
    lambda other, cotangent: (cotangent * jnp.cos(other), 0.3 * cotangent),
)
