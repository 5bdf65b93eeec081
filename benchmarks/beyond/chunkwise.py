"""Linear attention over chunks of steps, as its papers do it by hand.

With b_t the product of the decays from the start of a chunk to step t, and D_ts = b_t / b_s for s <= t,

    y_t = S_0^T (b_t q_t) + sum_{s <= t} (q_t^T D_ts k_s) v_s
    S_1 = b_C S_0 + sum_s (b_C / b_s * k_s) v_s^T

Sources: Yang et al. 2023, "Gated Linear Attention Transformers", section 4; Sun et al. 2023, "Retentive Network",
equation 7. Chunks have 64 steps for one decay a head. They have 16 for a decay a key, to keep 1 / b_s finite.
"""

import jax.numpy as jnp
from jax import Array, lax


def chunkwise(log_decay: Array, query: Array, key: Array, value: Array, state: Array) -> tuple[Array, Array]:
    """The last state and the outputs of all steps.

    Args:
        log_decay: (T, N, heads, K), or (T, N, heads, 1) for one decay a head.
        query: (T, N, heads, K).
        key: (T, N, heads, K).
        value: (T, N, heads, V).
        state: (N, heads, K, V).
    """
    steps = len(key)
    longest = 16 if log_decay.shape[-1] > 1 else 64
    size = next(size for size in range(longest, 0, -1) if steps % size == 0)

    def chunks(leaf: Array) -> Array:
        leaf = leaf.reshape(steps // size, size, *leaf.shape[1:])
        return jnp.moveaxis(leaf, 1, 3)  # (chunks, N, heads, C, ...)

    state, outputs = lax.scan(_chunk, state, tuple(map(chunks, (log_decay, query, key, value))))
    return state, jnp.moveaxis(outputs, 3, 1).reshape(steps, *value.shape[1:])


def _chunk(state: Array, x: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
    log_decay, query, key, value = x
    passed = jnp.cumsum(log_decay, axis=-2)
    if log_decay.shape[-1] == 1:
        between = passed - jnp.swapaxes(passed, -1, -2)
        scores = (query @ jnp.swapaxes(key, -1, -2)) * jnp.exp(jnp.tril(between))
    else:
        scores = (query * jnp.exp(passed)) @ jnp.swapaxes(key * jnp.exp(-passed), -1, -2)
    outputs = jnp.tril(scores) @ value + (query * jnp.exp(passed)) @ state
    last = passed[..., -1:, :]
    written = jnp.swapaxes(key * jnp.exp(last - passed), -1, -2) @ value
    return jnp.swapaxes(jnp.exp(last), -1, -2) * state + written, outputs
