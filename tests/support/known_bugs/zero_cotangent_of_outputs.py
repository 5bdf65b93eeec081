"""With JAX_REMAT3=1, the gradient of a checkpointed scan fails if nothing reads the outputs."""

import jax
import jax.numpy as jnp
from jax import lax


def last_carry(carry):
    scan = jax.checkpoint(lambda carry: lax.scan(lambda carry, x: (jnp.sin(carry * x), carry), carry, jnp.ones((4, 3))))
    return jnp.sum(scan(carry)[0])


try:
    jax.grad(last_carry)(jnp.ones(3))
except Exception as error:
    if "Expected cotangent type" not in str(error):
        raise
    print("wrong")
else:
    print("right")
