"""With JAX_REMAT3=1, `jax.vmap` has no rule for a name."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


try:
    jax.vmap(lambda x: checkpoint_name(jnp.sin(x), "kept"))(jnp.ones(3))
except NotImplementedError as error:
    if "must implement `batch`" not in str(error):
        raise
    print("wrong")
else:
    print("right")
