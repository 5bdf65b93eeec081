"""A small matrix times each of more than 32,768 rows, with a plain sum or maximum for each row, is wrong."""

import jax
import jax.numpy as jnp
import numpy as np


ROWS = 36_741
rows = np.random.default_rng(0).integers(-3, 4, size=(ROWS, 3)).astype(np.float32)
matrix = np.random.default_rng(1).integers(-3, 4, size=(3, 3)).astype(np.float32)
# Of integers, so that no order of the sums rounds.
computed = jax.jit(jax.vmap(lambda row: jnp.sum(matrix @ row)))(rows)
print("right" if np.array_equal(computed, np.sum(rows @ matrix.T, axis=-1)) else "wrong")
