"""Sampling: frequencies against the filtered distributions, and a stream of its own for each row."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import rnnscan as rs
from rnnscan.decoding import Sample
from rnnscan.decoding.filters import sampled_distribution
from tiers import variants
from token_models import assert_padded, decoder, model, teacher_forced, tokens_of


# Without order, with ties at 1.0 and -0.5.
LOGITS = np.array([1.0, -2.0, 2.2, -0.5, 1.0, -0.5, 0.3])
DRAWS = 6000


def distribution(*, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The distribution to draw from, token by token."""
    probs = {token: np.exp(logit / temperature) for token, logit in enumerate(LOGITS)}
    ranked = lambda: sorted(probs, key=lambda token: (-probs[token], token))  # noqa: E731
    if top_k is not None:
        probs = {token: probs[token] for token in ranked()[:top_k]}
    if top_p is not None:
        total, kept = sum(probs.values()), []
        for token in ranked():
            if sum(probs[one] for one in kept) < top_p * total:
                kept.append(token)
        probs = {token: probs[token] for token in kept}
    if min_p is not None:
        probs = {token: prob for token, prob in probs.items() if prob >= min_p * max(probs.values())}
    result = np.array([probs.get(token, 0.0) for token in range(len(LOGITS))])
    return result / result.sum()


SAMPLES = {
    "plain": {},
    "temperature": {"temperature": 0.5},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 3},
    "top_k in a tie": {"top_k": 2},
    "top_k of all": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "top_p of the first": {"top_p": 0.01},
    "top_p of all": {"top_p": 1.0},
    "min_p": {"min_p": 0.12},
    "min_p of all": {"min_p": 0.0},
    "min_p of the greatest": {"min_p": 1.0},
    "all": {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "min_p": 0.2},
}


@pytest.mark.parametrize("options", variants(SAMPLES, quick=("top_k in a tie", "all")))
def test_frequencies_pass_a_chi_squared_test(options):
    """Of draws at two steps, from one key."""

    def constant(params, carry, token):
        return carry, jnp.broadcast_to(params, (len(token), len(LOGITS)))

    strategy, start = Sample(**options), jnp.zeros(DRAWS // 2, int)
    run = partial(rs.decode, constant, end=None, max_steps=2, strategy=strategy, start=start)
    tokens = jax.jit(run)(jnp.asarray(LOGITS, jnp.float32), (), key=jax.random.key(3)).tokens
    wanted = distribution(**options)
    counts = np.bincount(np.asarray(tokens).ravel(), minlength=len(LOGITS))
    assert (counts[wanted == 0] == 0).all()
    if (wanted > 0).sum() > 1:
        assert chisquare(counts[wanted > 0], DRAWS * wanted[wanted > 0]).pvalue > 1e-3
    # The steps are independent draws: so are pairs.
    pairs = np.zeros((len(LOGITS), len(LOGITS)))
    np.add.at(pairs, tuple(np.asarray(tokens)), 1)
    expected = DRAWS // 2 * np.outer(wanted, wanted)
    often = expected > 5
    if often.sum() > 1:
        assert chisquare(pairs[often], expected[often] * pairs[often].sum() / expected[often].sum()).pvalue > 1e-3


@pytest.mark.parametrize("options", SAMPLES.values(), ids=SAMPLES.keys())
def test_filters(options):
    """The distributions themselves."""
    probs = jax.nn.softmax(jax.jit(sampled_distribution)(Sample(**options), jnp.asarray(LOGITS, jnp.float32)))
    np.testing.assert_allclose(probs, distribution(**options), rtol=1e-5, atol=1e-7)


def test_top_p_of_one_keeps_tokens_of_tiny_probability():
    """Rounding takes the sum of the others to 1 before the last tokens."""
    logits = jnp.asarray([*np.random.default_rng(0).normal(size=1000), -15.0, -15.0, -15.0], jnp.float32)
    assert jnp.cumsum(jnp.sort(jax.nn.softmax(logits), descending=True))[-4] >= 1
    assert jnp.isfinite(jax.jit(sampled_distribution)(Sample(top_p=1.0), logits)).all()


def test_each_row_has_its_own_stream():
    """The batch equals one by one, with one key or N of them; scores are those of the decoder, without filters."""
    rows, key = model(3, rows=5), jax.random.key(11)
    strategy = Sample(temperature=1.3, top_k=3)
    decoded = rows.decode(strategy=strategy, key=key)
    assert_padded(decoded, 0)
    of_rows = jnp.stack([jax.random.fold_in(key, row) for row in range(5)])
    again = rows.decode(strategy=strategy, key=of_rows)
    assert (again.tokens == decoded.tokens).all()
    for row in range(5):
        alone = rows.row(row).decode(strategy=strategy, key=of_rows[row : row + 1])
        assert tokens_of(alone, 0) == tokens_of(decoded, row)
    forced = teacher_forced(decoder, rows.params, rows.carry, 1, decoded.tokens)
    valid = np.arange(6)[:, None] < decoded.lengths
    np.testing.assert_allclose(decoded.token_scores, np.where(valid, forced, 0), rtol=1e-5)
    np.testing.assert_allclose(decoded.scores, np.where(valid, forced, 0).sum(axis=0), rtol=1e-5)


def test_raw_keys_and_other_keys():
    rows, strategy = model(3, rows=5), Sample(temperature=1.3, top_k=3)
    keys = (jax.random.key(11), jax.random.PRNGKey(11), jax.random.key(2))
    of_typed, of_raw, of_other = (rows.decode(strategy=strategy, key=key).tokens for key in keys)
    assert (of_typed == of_raw).all()
    assert (of_typed != of_other).any()


def test_one_compilation_serves_all_options():
    """The strategy is a pytree, whose leaves are the temperature, top_p and min_p."""
    rows, key = model(3, rows=5), jax.random.key(11)
    decode = jax.jit(lambda strategy: rows.decode(strategy=strategy, key=key, jit=False).tokens)
    assert (decode(Sample(1e-4, top_k=3)) == rows.decode().tokens).all()
    assert (decode(Sample(1.3, top_k=3)) == rows.decode(strategy=Sample(1.3, top_k=3), key=key).tokens).all()
    assert decode._cache_size() == 1
