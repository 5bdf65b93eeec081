"""What the tests of matrix states share: tiny states in windows and chunks, and a step of linear attention."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.engine.costs.heuristics import heuristics


LENGTH, BATCH = 21, 3
# What is compiled runs once, so it should compile quickly.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
compiled = partial(jax.jit, compiler_options=QUICKLY)
# Tiny states in windows of 7 or 8 steps, and chunks of 4. The chunkwise form runs them also where nothing is
# differentiated.
SMALL = replace(heuristics(), least_state=2, state_chunk=4, longest_window=8, loops_states_forward=False)
# The same on a CPU: a loop runs them where nothing is differentiated. With a decay for each key it runs the forward
# pass of windows too.
LOOPED = replace(SMALL, loops_states_forward=True)


def assert_equal(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Leaves that differ by at most the tolerance, relative to the largest element of each."""
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if leaf.dtype != jax.dtypes.float0:
            scale = float(np.max(np.abs(wanted), initial=0)) or 1
            np.testing.assert_allclose(leaf, wanted, rtol=0, atol=tolerance * scale)


def linear_attention(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    """A step without parameters."""
    query, key, value, decay = x
    state = decay[..., None] * state + key[..., :, None] * value[..., None, :]
    return state, jnp.einsum("nk,nkv->nv", query, state)


def decayed(length: int, keys: bool, decays: tuple[float, float], seed: int = 0) -> tuple[Any, Any]:
    """The state and the inputs of `linear_attention`, with two rows. One step forgets the state.

    Args:
        length: the number of steps.
        keys: a decay for each key; else for each row.
        decays: the smallest and the largest of the others.
        seed: of the random numbers.
    """
    random = np.random.default_rng(seed)
    query, key, value = (random.normal(size=(length, 2, 16)) / 4 for _ in range(3))
    decay = np.exp(random.uniform(*np.log(decays), size=(length, 2, 16 if keys else 1)))
    decay[length // 3] = 0
    return random.normal(size=(2, 16, 16)), (query, key, value, decay)
