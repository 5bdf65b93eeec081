"""The gradient of a branch of `lax.cond` that saves a random key does not compile."""

import jax
import jax.numpy as jnp
from jax import lax


def function(x, key):
    def noisy(x, key):
        return jnp.sum(jax.checkpoint(lambda x: jnp.sin(x * jax.random.normal(key, x.shape)))(x))

    return lax.cond(x[0] > 0, noisy, lambda x, key: jnp.sum(x), x, key)


try:
    jax.jit(jax.grad(function))(jnp.ones(3), jax.random.key(0))
except ValueError as error:
    if "Cannot lower jaxpr" not in str(error):
        raise
    print("wrong")
else:
    print("right")
