"""With JAX_SCAN3=1, `lax.scan` has neither a gradient nor a rule for `jax.vmap`."""

import jax
import jax.numpy as jnp
from jax import lax


try:
    jax.grad(lambda carry: lax.scan(lambda carry, x: (jnp.sin(carry * x), None), carry, jnp.ones(4))[0])(1.0)
except NotImplementedError as error:
    if "must implement `vjp_fwd`" not in str(error):
        raise
    print("wrong")
else:
    print("right")
