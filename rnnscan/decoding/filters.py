"""Filters of one row's log-probabilities, `(V,) -> (V,)`: removed tokens get -inf. The result is not normalized."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan.decoding.strategies import Sample
from rnnscan.decoding.top_k import top_k


def sampled_distribution(strategy: Sample, log_probs: Float[Array, " vocabulary"]) -> Float[Array, " vocabulary"]:
    """The logits that a `Sample` draws from: the temperature, then top-k, top-p and min-p."""
    logits = log_probs / strategy.temperature
    if strategy.top_k is not None:
        logits = keep_top_k(logits, strategy.top_k)
    if strategy.top_p is not None:
        logits = keep_top_p(logits, strategy.top_p)
    if strategy.min_p is not None:
        logits = keep_min_p(logits, strategy.min_p)
    return logits


def keep_top_k(logits: Float[Array, " vocabulary"], k: int) -> Float[Array, " vocabulary"]:
    """Keep the k greatest logits; the lowest tokens of equal ones."""
    _, tokens = top_k(logits, k)
    return jnp.where(jnp.zeros(logits.shape, bool).at[tokens].set(True), logits, -jnp.inf)


def keep_top_p(logits: Float[Array, " vocabulary"], p: Any) -> Float[Array, " vocabulary"]:
    """Keep the smallest set of the most likely tokens that has a probability of at least p."""
    order = jnp.argsort(logits, descending=True, stable=True)
    sorted_probs = jax.nn.softmax(logits)[order]
    before = jnp.cumsum(sorted_probs) - sorted_probs
    # Rounding can take the sum to 1 before the last token.
    kept = (before < p) | (jnp.asarray(p) >= 1)
    return jnp.where(jnp.zeros(logits.shape, bool).at[order].set(kept), logits, -jnp.inf)


def keep_min_p(logits: Float[Array, " vocabulary"], p: Any) -> Float[Array, " vocabulary"]:
    """Keep the tokens with at least p times the probability of the most likely one."""
    return jnp.where(logits >= logits.max() + jnp.log(jnp.asarray(p, logits.dtype)), logits, -jnp.inf)
