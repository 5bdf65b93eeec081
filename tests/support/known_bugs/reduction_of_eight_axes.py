"""A broadcast product with eight axes, reduced over one, crashes the process, or never ends (jax#39257)."""

import jax
import jax.numpy as jnp


def reduced(factor, values):
    return jnp.log(jnp.sum(factor[..., None, None, None, None, None] * values, axis=2))


print(f"sum of {jnp.sum(jax.jit(reduced)(jnp.ones((10, 4, 6)), jnp.ones((10, 4, 6, 9, 9, 9, 9, 9))))}")
print("right")
