"""Ensembles: their scores are the means of the members' teacher-forced ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import decoding
from rnnscan.decoding import Beam
from tiers import variants
from token_models import compiled, decoder, model, teacher_forced, with_aux


close = partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
AVERAGES = {
    "log_probs": lambda members: np.mean(members, axis=0),
    "probs": lambda members: np.log(np.mean(np.exp(members), axis=0)),
}


def narrow(params, carry, token):
    carry, logits = decoder(params, carry, token)
    return carry, logits.astype(jnp.bfloat16)


@pytest.mark.parametrize("average", variants(list(AVERAGES), ["log_probs"]))
def test_scores_are_means_of_teacher_forced_ones(average):
    members = [model(seed, rows=3) for seed in (3, 4)]
    params, carry = (tuple(getattr(one, name) for one in members) for name in ("params", "carry"))
    together = decoding.ensemble(with_aux, with_aux, average=average, has_aux=True)
    run = partial(rs.decode, together, start=1, end=0, max_steps=5, strategy=Beam(3, n_best=2), has_aux=True)
    decoded = jax.jit(run)(params, carry)
    for place in range(2):
        tokens = decoded.tokens[:, :, place]
        forced = [teacher_forced(decoder, one.params, one.carry, 1, tokens) for one in members]
        valid = np.arange(5)[:, None] < decoded.lengths[:, place]
        wanted = np.where(valid, AVERAGES[average](forced), 0)
        close(decoded.token_scores[:, :, place], wanted)
        close(decoded.scores[:, place], wanted.sum(axis=0))
    assert len(decoded.aux) == 2
    close(decoded.aux[1]["hidden"][0, :, 0], members[1].carry["hidden"])


@pytest.mark.parametrize("average", variants(AVERAGES.keys(), quick=["log_probs"]))
def test_an_ensemble_of_an_ensemble_is_the_inner_one(average):
    """Averages are not normalized again. Narrow logits are scored in float32."""
    members = [model(seed, rows=3) for seed in (3, 4)]
    params, carry = (tuple(getattr(one, name) for one in members) for name in ("params", "carry"))
    inner = decoding.ensemble(narrow, narrow, average=average)
    outer = decoding.ensemble(inner, inner, average=average)
    options = {"start": 1, "end": 0, "max_steps": 5}
    alone = compiled(decoder=inner, **options)(params, carry)
    twice = compiled(decoder=outer, **options)((params, params), (carry, carry))
    assert alone.scores.dtype == twice.scores.dtype == jnp.float32
    jax.tree.map(close, alone, twice)
