"""Decoding with one hypothesis per row: greedy and sampling."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from rnnscan._util.step_wrappers import select_rows
from rnnscan.decoding.filters import sampled_distribution
from rnnscan.decoding.request import DecodeRequest
from rnnscan.decoding.result import Decoded
from rnnscan.decoding.strategies import Sample


# choose(index of the step, log-probabilities (N, V)) -> tokens (N,).
Choose: TypeAlias = Callable[[Any, Any], Any]


class _State(NamedTuple):
    index: Any
    carry: Any
    tokens: Any  # (N,): those of the last step
    ended: Any  # (N,)
    lengths: Any  # (N,)
    outputs: Any  # tokens, their scores and aux, each (T, N, ...)


def choose_greedily(_: Any, log_probs: Float[Array, "rows vocabulary"]) -> Int[Array, " rows"]:
    """The most likely tokens, the lowest of equal ones."""
    return jnp.argmax(log_probs, axis=-1).astype(jnp.int32)


def draw_with(strategy: Sample, keys: Key[Array, " rows"]) -> Choose:
    """A choice that draws each row's token from the row's own stream."""

    def draw(index: Any, key: Any, log_probs: Any) -> Any:
        drawn = jax.random.categorical(jax.random.fold_in(key, index), sampled_distribution(strategy, log_probs))
        return drawn.astype(jnp.int32)

    return lambda index, log_probs: jax.vmap(draw, in_axes=(None, 0, 0))(index, keys, log_probs)


def decode_tokens(request: DecodeRequest, choose: Choose) -> Decoded:
    """Run the decoder until all rows have ended, or for `max_steps`.

    Rows that have ended still step with the others; their results are discarded.

    Args:
        request: the call.
        choose: how tokens are chosen.

    Returns:
        The sequences.
    """

    def cond_fun(state: _State) -> Any:
        return (state.index < request.max_steps) & ~state.ended.all()

    def step(state: _State) -> _State:
        carry, (log_probs, aux) = request.step(state.carry, state.tokens)
        tokens = choose(state.index, log_probs)
        token_scores = jnp.take_along_axis(log_probs, tokens[:, None], axis=-1)[:, 0]
        # The buffers hold the padding from the start.
        padding = jax.tree.map(lambda buffer: buffer[state.index], state.outputs)
        outputs = select_rows(state.ended, padding, (tokens, token_scores, aux))
        return _State(
            index=state.index + 1,
            carry=carry,
            tokens=outputs[0],
            ended=state.ended | request.ends(tokens),
            lengths=state.lengths + ~state.ended,
            outputs=jax.tree.map(lambda buffer, output: buffer.at[state.index].set(output), state.outputs, outputs),
        )

    def buffer(of_step: Any) -> Any:
        return jnp.zeros((request.max_steps, *of_step.shape), of_step.dtype)

    tokens = jnp.full((request.max_steps, request.rows), request.padding, jnp.int32)
    token_scores = jnp.zeros(tokens.shape, request.log_probs.dtype)
    zeros = jnp.zeros_like(request.start)
    outputs = (tokens, token_scores, jax.tree.map(buffer, request.aux))
    state = _State(jnp.int32(0), request.carry, request.start, zeros.astype(bool), zeros, outputs)
    state = lax.while_loop(cond_fun, step, request.vary(state))
    tokens, token_scores, aux = state.outputs
    return Decoded(tokens, state.lengths, token_scores.sum(axis=0), token_scores, aux)
