"""Beam search over a batch of rows, with a set of finished hypotheses in addition to the live ones.

The live hypotheses of a row have `size` places. At each step every place records the token that it was given and its
parent, the place whose extension it is. `paths.py` follows the parents back.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from rnnscan._util.ranks import over_rows
from rnnscan.decoding.paths import Finished, Steps, follow, gather_places
from rnnscan.decoding.request import DecodeRequest
from rnnscan.decoding.result import Decoded
from rnnscan.decoding.strategies import Beam
from rnnscan.decoding.top_k import top_k


class _State(NamedTuple):
    index: Any
    carry: Any  # leaves (N, size, ...) or ()
    tokens: Any  # (N, size): those of the last step
    raw: Any  # (N, size): raw scores of live hypotheses; -inf at places without one
    finished: Finished
    is_nan: Any  # (N,): whether a live hypothesis had a NaN log-probability
    steps: Steps


class _Scores(NamedTuple):
    """The parts of a score that do not depend on the decoder.

    Attributes:
        rewards: `(V,)`, or zero.
        best_reward: the greatest reward.
        divisors: `(T,)`, those of the lengths 1 to T.
    """

    rewards: Any
    best_reward: Any
    divisors: Any


def search(request: DecodeRequest, strategy: Beam) -> Decoded:
    """Run beam search.

    Args:
        request: the call.
        strategy: the options.

    Returns:
        The n-best lists.

    Raises:
        ValueError: if the beam is wider than the vocabulary allows, or the rewards do not fit it.
        TypeError: if a length penalty does not return an array like its argument.
    """
    _check_size(request, strategy.size)
    scores = _scores(request, strategy)
    step_places = _over_places(request)

    def cond_fun(state: _State) -> Any:
        return (state.index < request.max_steps) & (state.raw > -jnp.inf).any()

    def step(state: _State) -> _State:
        carry, (log_probs, aux) = step_places(state.carry, state.tokens)
        live = state.raw > -jnp.inf
        is_nan = state.is_nan | (jnp.isnan(log_probs).any(axis=-1) & live).any(axis=-1)
        raw, parents, tokens, token_scores = _best_extensions(state.raw, log_probs, scores.rewards)
        ends = request.ends(tokens) | (state.index + 1 == request.max_steps)
        ended = Finished(
            scores=jnp.where(ends, raw / scores.divisors[state.index], -jnp.inf),
            last_steps=jnp.full_like(tokens, state.index),
            parents=parents,
            tokens=tokens,
            token_scores=token_scores,
        )
        finished = _best_finished(state.finished, ended)
        raw = jnp.where(ends, -jnp.inf, raw)
        stops = is_nan | (finished.scores[:, -1] >= _bound(raw.max(axis=-1), state.index + 1, scores))
        written = Steps(tokens, parents, token_scores, aux)
        return _State(
            index=state.index + 1,
            carry=jax.tree.map(lambda leaf: gather_places(leaf, parents) if leaf.ndim else leaf, carry),
            tokens=tokens,
            raw=jnp.where(stops[:, None], -jnp.inf, raw),
            finished=finished,
            is_nan=is_nan,
            steps=jax.tree.map(lambda buffer, new: buffer.at[state.index].set(new), state.steps, written),
        )

    state = lax.while_loop(cond_fun, step, request.vary(_initial(request, strategy)))
    tokens, token_scores, aux = follow(state.finished, state.steps, request.padding)
    best = jnp.where(state.is_nan[:, None], jnp.nan, state.finished.scores)
    return Decoded(tokens, state.finished.last_steps + 1, best, token_scores, aux)


def _initial(request: DecodeRequest, strategy: Beam) -> _State:
    """One live hypothesis in each row: the start token."""

    def repeat(leaf: Any) -> Any:
        if not leaf.ndim:
            return leaf
        return jnp.broadcast_to(leaf[:, None], (leaf.shape[0], strategy.size, *leaf.shape[1:]))

    def buffer(of_step: Any) -> Any:
        return jnp.zeros((request.max_steps, request.rows, strategy.size, *of_step.shape[1:]), of_step.dtype)

    tokens = repeat(request.start)
    raw = jnp.full(tokens.shape, -jnp.inf, request.log_probs.dtype).at[:, 0].set(0)
    none = jnp.zeros((request.rows, strategy.n_best), jnp.int32)
    no_scores = jnp.full(none.shape, -jnp.inf, raw.dtype)
    token, token_score = jnp.zeros(request.rows, jnp.int32), jnp.zeros(request.rows, raw.dtype)
    return _State(
        index=jnp.int32(0),
        carry=jax.tree.map(repeat, request.carry),
        tokens=tokens,
        raw=raw,
        finished=Finished(no_scores, none - 1, none, none, jnp.zeros_like(no_scores)),
        is_nan=jnp.zeros(request.rows, bool),
        steps=jax.tree.map(buffer, Steps(token, token, token_score, request.aux)),
    )


def _over_places(request: DecodeRequest) -> Callable[[Any, Any], Any]:
    """The step over carries `(N, size, ...)` and tokens `(N, size)`.

    The decoder is mapped over places, so it sees N rows, and a decoder over N encoder outputs needs no copies of them.
    """
    axes = jax.tree.map(lambda leaf: 1 if leaf.ndim else None, request.carry)
    mapped = jax.vmap(request.step, in_axes=(axes, 1), out_axes=(axes, 1))

    def step(carry: Any, tokens: Any) -> Any:
        try:
            return mapped(carry, tokens)
        except ValueError as error:
            if None in jax.tree.leaves(axes, is_leaf=lambda axis: axis is None):
                error.add_note(
                    "decode: hypotheses share the scalar leaves of the carry, so these must not depend on tokens. Make "
                    "such a leaf (N,)."
                )
            raise

    return step


def _best_extensions(
    raw: Float[Array, "rows size"], log_probs: Float[Array, "rows size vocabulary"], rewards: Any
) -> tuple[Any, Any, Any, Any]:
    """The extensions of greatest raw score, best first: raw scores, parents, tokens and tokens' log-probabilities."""
    rows, size, vocabulary = log_probs.shape
    # A place without a hypothesis may hold NaN.
    rewarded = raw[..., None] + (log_probs + over_rows(rewards, log_probs))
    extended = jnp.where(raw[..., None] > -jnp.inf, rewarded, -jnp.inf)
    # Of equal values `top_k` takes the first: the better hypothesis, then the lowest token.
    raw, places = top_k(extended.reshape(rows, size * vocabulary), size)
    token_scores = jnp.take_along_axis(log_probs.reshape(rows, size * vocabulary), places, axis=-1)
    return raw, places // vocabulary, places % vocabulary, token_scores


def _best_finished(finished: Finished, ended: Finished) -> Finished:
    """The n best of both, best first. Of equal ones those that finished earlier come first."""
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, ended)
    _, places = top_k(both.scores, finished.scores.shape[1])
    return jax.tree.map(lambda leaf: gather_places(leaf, places), both)


def _bound(best: Float[Array, " rows"], length: Int[Array, ""], scores: _Scores) -> Float[Array, " rows"]:
    """The greatest score that an extension of a row's live hypotheses can reach.

    Let the live hypotheses have `length` tokens, raw scores of at most `best`, and let r be the greatest reward. A
    finished extension has L tokens, length < L <= T. Each of its L - length new tokens adds a log-probability, at most
    0, and a reward, at most r. So its raw score is at most best + (L - length) r. Its divisor is positive and depends
    on L alone, so its score is at most (best + (L - length) r) / divisor(L). The maximum over L bounds them all.

    It needs no assumption about the penalty, such as growth with the length. Without rewards it holds in floating point
    as well, because adding a number of at most 0 and dividing by a positive one are monotone after rounding; with
    rewards it holds to rounding.
    """
    lengths = jnp.arange(1, len(scores.divisors) + 1)[None]
    raw = best[:, None] + (lengths - length) * scores.best_reward
    return jnp.where(lengths > length, raw / scores.divisors[None], -jnp.inf).max(axis=-1)


def _scores(request: DecodeRequest, strategy: Beam) -> _Scores:
    dtype = request.log_probs.dtype
    rewards = jnp.zeros((), dtype)
    if strategy.word_rewards is not None:
        rewards = jnp.asarray(strategy.word_rewards, dtype)
        if rewards.shape != (request.vocabulary,):
            raise ValueError(
                f"decode: `word_rewards` must be (V,), one for each of the {request.vocabulary} tokens; got shape "
                f"{rewards.shape}. Use 0 for a token without a reward."
            )
    lengths = jnp.arange(1, request.max_steps + 1, dtype=dtype)
    divisors = lengths**0 if strategy.length_penalty is None else strategy.length_penalty(lengths)
    if getattr(divisors, "shape", None) != lengths.shape:
        raise TypeError(
            f"decode: `length_penalty` must return an array like the lengths, {lengths.shape}; got {divisors!r}. Use "
            "functions of jax.numpy on them."
        )
    return _Scores(rewards, rewards.max(), divisors.astype(dtype))


def _check_size(request: DecodeRequest, size: int) -> None:
    """Reject a beam that cannot be filled at the last step, when there are the most extensions.

    A row has at most V extensions at step 1, and each that does not end has V at the next step.
    """
    continuing = request.vocabulary - (request.end is not None)
    extensions = request.vocabulary
    for _ in range(request.max_steps - 1):
        if extensions >= size or continuing < 2:
            break
        extensions *= continuing
    if size > extensions:
        raise ValueError(
            f"decode: a beam must not be wider than the vocabulary allows; got size={size}, and with V = "
            f"{request.vocabulary} and max_steps={request.max_steps} a step has at most {extensions} extensions. Use a "
            f"size of at most {extensions}, with which the search is exhaustive."
        )
