"""With JAX_REMAT3=1, a NaN that nothing reads, in the carry of a scan of `jax.checkpoint`, reaches the gradient."""

import jax
import jax.numpy as jnp
from jax import lax


def step(p, carry, x):
    read, unread = carry
    return (read * p + x, unread * p), None


def loss(p):
    chunk = jax.checkpoint(lambda carry, xs: lax.scan(lambda carry, x: step(p, carry, x), carry, xs))
    start = jnp.float32(1), jnp.float32(jnp.nan)
    return lax.scan(chunk, start, jnp.ones((2, 2)))[0][0]


print("wrong" if jnp.isnan(jax.grad(loss)(0.5)) else "right")
