"""With JAX_REMAT3=1, `jax.checkpoint` cannot be transposed."""

import jax
import jax.numpy as jnp


function = jax.checkpoint(lambda x: 2.0 * x)
try:
    (computed,) = jax.linear_transpose(function, jnp.float32(0))(jnp.float32(3))
    print("right" if computed == 6 else "wrong")
except NotImplementedError:
    print("wrong")
