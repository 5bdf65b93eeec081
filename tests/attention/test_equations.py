"""Every mechanism against its equations, written as slow loops over rows, steps and steps of the encoder."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import (
    DECODER_LENGTHS,
    DECODERS,
    ENCODER_LENGTHS,
    arguments,
    gradients,
    gradients_of,
    loop,
)
from rnnscan.attention.mechanism import masked_softmax
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


# The longest equations, with a carry of its own; test_decoder.py runs those with heads.
@pytest.mark.parametrize("name", variants(DECODERS.keys(), ["coverage"]))
def test_values_and_gradients_are_those_of_the_equations(name):
    """A row whose encoder is padded is a row whose encoder is shorter, and one whose inputs are padded stops."""
    decoder = DECODERS[name]
    given = arguments(decoder)
    actual = gradients_of(decoder, given, seq_lengths=jnp.asarray(DECODER_LENGTHS))
    assert_trees_close(actual, gradients(partial(loop, decoder), *given), tolerance=1e-9)


@pytest.mark.parametrize("name", variants(["recurrent", "coverage", "multi-head"], ["coverage"]))
def test_nan_in_the_padding_of_the_encoder_reaches_nothing(name):
    decoder = DECODERS[name]
    params, encoder_outputs, carry, xs = arguments(decoder)
    valid = np.arange(len(encoder_outputs))[:, None, None] < np.asarray(ENCODER_LENGTHS)[:, None]
    keys = jnp.ones((*encoder_outputs.shape[:2], decoder.attention.key_size))
    compiled = jax.jit(lambda given, supplied: gradients_of(decoder, given, **supplied))
    for supplied in ({}, {"keys": jnp.where(valid, keys, jnp.nan)}):
        padded = params, jnp.where(valid, encoder_outputs, jnp.nan), carry, xs
        expected = compiled((params, encoder_outputs, carry, xs), supplied and {"keys": keys})
        assert_trees_close(compiled(padded, supplied), expected, tolerance=0)
        assert not np.any(np.asarray(expected[1][1])[~np.broadcast_to(valid, encoder_outputs.shape)])


@pytest.mark.parametrize("name", variants(["additive", "coverage", "multi-head"], ["coverage"]))
def test_a_row_without_an_encoder_has_a_context_and_weights_of_zeros(name):
    decoder = DECODERS[name]
    (carry, (ys, weights)), gradients = gradients_of(decoder, arguments(decoder), encoder_lengths=(4, 0, 0, 1))
    assert not np.any(carry[1][1:3])
    assert not np.any(weights[:, 1:3])
    assert not np.any(ys[:, 1:3, decoder.cell.output_size :])
    assert not np.any(gradients[1][:, 1:3])
    np.testing.assert_allclose(weights[:, ::3].sum(axis=-1), 1, rtol=1e-12)


def test_no_nan_is_made_on_the_way():
    valid = jnp.array([[True, False], [False, False]])
    with jax.debug_nans(True):
        gradient = jax.grad(lambda scores: jnp.sum(masked_softmax(scores, valid) ** 2))(jnp.ones((2, 2)))
    assert not np.any(gradient)
