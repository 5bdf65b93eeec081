"""Textbook cells, `cell(params, carry, x) -> (carry, y)`, as a user of `lax.scan` writes them.

LSTM, GRU, ParaGRU and ParaLSTM take the parameters of `rnnscan.cells`. The others take a `label`: `rnnscan.name` for
rnnscan, and the identity for `lax.scan`, because a label that no policy reads costs memory in plain autodiff.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


Params = dict[str, Any]
Label = Callable[[Any, str], Any]
Cell = Callable[[Any, Any, Any], tuple[Any, Any]]


def no_label(value: Any, label: str) -> Any:
    """The value without a label."""
    return value


def lstm(params: Params, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    hidden, state = carry
    gates = x @ params["kernel"] + hidden @ params["recurrent_kernel"] + params["bias"]
    return _lstm_update(gates, state)


def gru(params: Params, carry: tuple[Array], x: Array) -> tuple[tuple[Array], Array]:
    (hidden,) = carry
    units = hidden.shape[-1]
    from_input = x @ params["kernel"] + params["bias"]
    from_hidden = hidden @ params["recurrent_kernel"]
    gates = jax.nn.sigmoid(from_input[..., : 2 * units] + from_hidden[..., : 2 * units])
    reset, update = jnp.split(gates, 2, axis=-1)
    candidate_hidden = from_hidden[..., 2 * units :] + params["recurrent_bias"]
    candidate = jnp.tanh(from_input[..., 2 * units :] + reset * candidate_hidden)
    hidden = (1 - update) * candidate + update * hidden
    return (hidden,), hidden


def stacked_lstm(params: Params, carry: tuple[Any, ...], x: Array) -> tuple[tuple[Any, ...], Array]:
    """Stacked LSTMs, with the parameters and carry of `rnnscan.stack`."""
    carries = []
    for layer, layer_carry in enumerate(carry):
        new_carry, x = lstm(params[f"layer_{layer}"], layer_carry, x)
        carries.append(new_carry)
    return tuple(carries), x


def layer_norm_lstm(label: Label) -> Cell:
    """An LSTM with layer normalisation of both products and of the cell state (Ba et al. 2016, equations 20 to 22)."""

    def cell(params: Params, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, state = carry
        from_input = _normalise(x @ params["kernel"], params["input_scale"])
        from_hidden = _normalise(hidden @ params["recurrent_kernel"], params["hidden_scale"])
        gates = label(from_input + from_hidden + params["bias"], "gates")
        input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4, axis=-1)
        state = jax.nn.sigmoid(forget_gate) * state + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
        normalised = _normalise(state, params["state_scale"]) + params["state_bias"]
        hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(normalised)
        return (hidden, state), hidden

    return cell


def para_gru(params: Params, carry: tuple[Array], x: Array) -> tuple[tuple[Array], Array]:
    """The ParaGRU of Danieli et al. 2025: its recurrent weights are vectors."""
    (hidden,) = carry
    update, reset, candidate = jnp.split(x @ params["kernel"] + params["bias"], 3, axis=-1)
    of_update, of_reset, of_candidate = jnp.split(params["recurrent_kernel"], 3)
    update = jax.nn.sigmoid(update + of_update * hidden)
    reset = jax.nn.sigmoid(reset + of_reset * hidden)
    hidden = (1 - update) * hidden + update * jnp.tanh(candidate + of_candidate * reset * hidden)
    return (hidden,), hidden


def para_lstm(params: Params, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    """The ParaLSTM of the same paper."""
    hidden, state = carry
    forget, output, candidate = jnp.split(x @ params["kernel"] + params["bias"], 3, axis=-1)
    of_forget, of_output, of_candidate = jnp.split(params["recurrent_kernel"], 3)
    peep_forget, peep_output = jnp.split(params["peephole_kernel"], 2)
    forget = jax.nn.sigmoid(forget + of_forget * hidden + peep_forget * state)
    state = forget * state + (1 - forget) * jnp.tanh(candidate + of_candidate * hidden)
    hidden = jax.nn.sigmoid(output + of_output * hidden + peep_output * state) * jnp.tanh(state)
    return (hidden, state), hidden


def min_gru(label: Label) -> Cell:
    """The minimal GRU of Feng et al. 2024: gate and candidate ignore the hidden state, so the step is linear in it."""

    def cell(params: Params, carry: tuple[Array], x: Array) -> tuple[tuple[Array], Array]:
        (hidden,) = carry
        gates = label(x @ params["kernel"] + params["bias"], "gates")
        update, candidate = jnp.split(gates, 2, axis=-1)
        update = jax.nn.sigmoid(update)
        hidden = (1 - update) * hidden + update * candidate
        return (hidden,), hidden

    return cell


def attention_lstm(label: Label) -> Cell:
    """A decoder: additive attention (Bahdanau et al. 2015) over an encoder's outputs, with its context fed to an LSTM.

    The parameters hold "encoder" `(N, L, E)` and "keys" `(N, L, A)` besides the weights.
    """

    def cell(params: Params, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, state = carry
        query = hidden @ params["query_kernel"]
        scores = jnp.tanh(params["keys"] + query[:, None, :]) @ params["score_kernel"]
        weights = jax.nn.softmax(scores, axis=-1)
        context = jnp.einsum("nl,nle->ne", weights, params["encoder"])
        from_input = jnp.concatenate([x, context], axis=-1) @ params["kernel"]
        gates = label(from_input + hidden @ params["recurrent_kernel"] + params["bias"], "gates")
        return _lstm_update(gates, state)

    return cell


def _lstm_update(gates: Array, state: Array) -> tuple[tuple[Array, Array], Array]:
    input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4, axis=-1)
    state = jax.nn.sigmoid(forget_gate) * state + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
    hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(state)
    return (hidden, state), hidden


def _normalise(z: Array, scale: Array) -> Array:
    mean = jnp.mean(z, axis=-1, keepdims=True)
    variance = jnp.var(z, axis=-1, keepdims=True)
    return scale * (z - mean) * jax.lax.rsqrt(variance + 1e-5)
