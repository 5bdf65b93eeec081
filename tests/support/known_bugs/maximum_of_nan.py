"""The maximum of 8,192 values passes over NaN on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np


values = np.full((128, 4, 16), np.nan, np.float32)
print("right" if np.isnan(jax.jit(lambda values: jnp.max(jnp.abs(values)))(values)) else "wrong")
