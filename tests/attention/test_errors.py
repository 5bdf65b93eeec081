"""What is refused, and in which words."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from decoding import BATCH, DECODERS, ENCODER_LENGTH, FEATURES, HIDDEN, KINDS
from rnnscan import attention, cells


OUTPUTS = jnp.ones((ENCODER_LENGTH, BATCH, 5))
DECODER = KINDS["additive"]
COVERAGE = KINDS["coverage"]


def params_of(decoder=DECODER):
    return decoder.init(jax.random.key(0), FEATURES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention.Additive(0, 6), r"Additive: `encoder_size` must be an int of at least 1; got 0"),
        (lambda: attention.Coverage(5, -1), r"Coverage: `attention_size` must be an int of at least 1; got -1"),
        (lambda: attention.MultiHead(5, 6, heads=0), r"MultiHead: `heads` must be an int of at least 1; got 0"),
        (lambda: attention.MultiHead(5, 6, heads=4), r"`heads` must divide `attention_size`.* heads=4 and attention_s"),
        (lambda: attention.decoder(cells.GRU(4), attention.Dot(5)), r"query of 4 and encoder_size=5. Give project_qu"),
        (lambda: attention.Dot(5).init(jax.random.key(0), 4), r"query of 4 and encoder_size=5"),
        (lambda: attention.Additive(5, 6).init(jax.random.key(0), 0), r"`query_size` must be an int of at least 1"),
    ],
)
def test_configurations_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention.Dot(5, dtype=jnp.int32), r"Dot: `dtype` must be a floating dtype"),
        (lambda: attention.Dot(5, param_dtype=None), r"Dot: `param_dtype` must be a floating dtype"),
        (lambda: attention.decoder(cells.GRU(4), cells.GRU(4)), r"`attention` must be a mechanism.*got GRU\("),
        (lambda: attention.decoder(attention.Dot(4), cells.GRU(4)), r"attention.decoder: a cell must be"),
    ],
)
def test_what_is_no_cell_no_mechanism_and_no_dtype(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_parameters_of_something_else():
    params = params_of()
    with pytest.raises(ValueError, match=r"must be a dictionary of 'cell' and 'attention'; got 'kernel'"):
        DECODER.over({"kernel": jnp.ones(3)}, OUTPUTS)
    with pytest.raises(ValueError, match=r"'score_kernel' \(6,\); got .*'context_kernel' float32\[5,6\]"):
        DECODER.over(params_of(KINDS["recurrent"]), OUTPUTS)
    with pytest.raises(ValueError, match=r"parameters of MultiHead\(.*'output_kernel' \(6, 5\)"):
        KINDS["multi-head"].over(params, OUTPUTS)
    cell = DECODER.over(params, OUTPUTS)
    x = jnp.ones((BATCH, FEATURES))
    with pytest.raises(ValueError, match=r"must be a dictionary of 'cell' and 'attention'"):
        cell(params["cell"], cell.initial_carry(x), x)
    with pytest.raises(ValueError, match=r"for a query of 4 must be none; got 'query_kernel'"):
        DECODERS["dot"].over(params_of(DECODERS["dot, projected"]), jnp.ones((ENCODER_LENGTH, BATCH, HIDDEN)))


@pytest.mark.parametrize(
    ("outputs", "options", "message"),
    [
        (OUTPUTS[..., :4], {}, r"`encoder_outputs` must be \(L, N, 5\), time-major"),
        (OUTPUTS, {"keys": OUTPUTS}, r"`keys` must be \(4, 4, 6\), time-major"),
    ],
)
def test_encoder_outputs_and_keys_that_do_not_fit(outputs, options, message):
    with pytest.raises(ValueError, match=message):
        DECODER.over(params_of(), outputs, **options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("error", "outputs", "options", "message"),
    [
        (ValueError, jnp.ones(5), {}, r"`encoder_outputs` must be \(L, N, 5\)"),
        (TypeError, OUTPUTS.astype(int), {}, r"`encoder_outputs` must be of a floating dtype"),
        (TypeError, OUTPUTS, {"keys": jnp.ones((4, 4, 6), int)}, r"`keys` must be of a floating dtype"),
        (ValueError, OUTPUTS[:3], {"keys": jnp.ones((4, 4, 6))}, r"`keys` must be \(3, 4, 6\)"),
        (ValueError, OUTPUTS, {"encoder_lengths": jnp.ones(3, int)}, r"`encoder_lengths` must be \(4,\)"),
        (ValueError, OUTPUTS, {"encoder_lengths": jnp.ones((4, 1), int)}, r"`encoder_lengths` must be \(4,\)"),
        (TypeError, OUTPUTS, {"encoder_lengths": jnp.ones(4)}, r"`encoder_lengths` must be integers; got float32\[4\]"),
    ],
)
def test_encoder_outputs_keys_and_lengths_of_wrong_types(error, outputs, options, message):
    with pytest.raises(error, match=message):
        DECODER.over(params_of(), outputs, **options)


def test_keys_that_are_to_be_supplied():
    decoder = attention.decoder(cells.LSTM(HIDDEN), replace(DECODER.attention, project_keys=False))
    with pytest.raises(ValueError, match=r"with project_keys=False `keys` must be given"):
        decoder.over(params_of(decoder), OUTPUTS)


def test_inputs_and_carries_that_do_not_fit():
    params = params_of(COVERAGE)
    cell = COVERAGE.over(params, OUTPUTS)
    x = jnp.ones((BATCH, FEATURES))
    carry = cell.initial_carry(x)
    with pytest.raises(ValueError, match=r"one step's input must be \(4, D\), with the batch of the encoder's"):
        cell(params, carry, x[:3])
    with pytest.raises(TypeError, match=r"the tuple of the inner cell's carry, context, coverage; got"):
        cell(params, carry[:2], x)
    with pytest.raises(ValueError, match=r"coverage in the carry must be floating, \(4, 4\); got float32\[4,3\]"):
        cell(params, (*carry[:2], carry[2][:, :3]), x)
    with pytest.raises(ValueError, match=r"context in the carry must be floating, \(4, 5\); got int32\[4,5\]"):
        cell(params, (carry[0], carry[1].astype(int), carry[2]), x)


def test_a_name_that_a_decoder_does_not_have():
    params = params_of()
    cell, xs = DECODER.over(params, OUTPUTS), jnp.ones((2, BATCH, FEATURES))
    with pytest.raises(ValueError, match=r"Did you mean 'attention'"):
        rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=rs.Memory(recompute=("attentions",)))
