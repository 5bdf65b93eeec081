"""decode(): sequences of tokens from a decoder."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rnnscan._util.messages import describe, is_key
from rnnscan.decoding.beam_search import search
from rnnscan.decoding.request import Decoder, DecodeRequest
from rnnscan.decoding.result import Decoded
from rnnscan.decoding.strategies import Beam, Greedy, Sample, Strategy
from rnnscan.decoding.token_loop import choose_greedily, decode_tokens, draw_with
from rnnscan.decoding.validate import validate
from rnnscan.scan_observer import observe_loop


def decode(
    decoder: Decoder,
    params: Any,
    carry: Any,
    *,
    start: int | Int[Array, "*rows"],
    end: int | None,
    max_steps: int,
    strategy: Strategy = Greedy(),
    key: Any = None,
    has_aux: bool = False,
) -> Decoded:
    """Decode sequences of tokens: each token that is chosen is the decoder's next input.

        carry, logits_t = decoder(params, carry, y_{t-1}),        y_0 = start
        log p(y_t | y_<t) = log_softmax(logits_t)[y_t]

    The loop stops when all rows have ended. One compilation serves all lengths up to `max_steps`. Wrap the call in
    `jax.jit`: outside, the loop compiles at each call.

    The result has no gradient. To train on decoded sequences, run the decoder over them with `rnnscan.scan`, which
    gives the same log-probabilities. Run a prompt the same way, and decode from its carry and its last token.

    NaN: a step with a NaN or +inf among its logits has NaN scores. `Greedy` and `Sample` choose token 0 there; a row of
    `Beam` stops, and all its scores are NaN.

    Args:
        decoder: `decoder(params, carry, token) -> (carry, logits)`, for int32 tokens `(N,)` and floating logits
            `(N, V)`. `rnnscan.decoding.decoder` makes one of a cell or net, `rnnscan.decoding.ensemble` of several
            decoders. Scores are in float32 for narrower logits. A decoder with the attribute
            `returns_log_probs = True` is not normalized: its logits are log-probabilities, or other scores of at
            most 0.
        params: its parameters, any pytree.
        carry: its carry before the first step, a pytree with leaves `(N, ...)`, integers and PRNG keys included. A
            scalar leaf is shared by the rows, as a count of steps is; under `Beam` it must not depend on tokens.
        start: the token before the first step, or integers `(N,)`, one for each row.
        end: the end token, or None: all sequences have `max_steps` tokens.
        max_steps: T, the greatest number of tokens, the end token included.
        strategy: `Greedy`, `Sample` or `Beam`, of `rnnscan.decoding`.
        key: for `Sample` alone, a PRNG key, or N of them. Row n draws from `jax.random.fold_in(key, n)`, or from its
            own key, so that a row does not depend on the others.
        has_aux: whether the decoder returns `(carry, (logits, aux))`. Aux is a pytree with leaves `(N, ...)`, such as
            attention weights. The result holds it along each sequence.

    Returns:
        A `Decoded`. The end token is kept, as in Caffe2.

    Raises:
        TypeError: if an argument has a wrong type, or the decoder does not return a carry like the one it was given and
            floating logits; if `key` is missing for `Sample`, or given for another strategy.
        ValueError: if an array is sharded over an explicit axis of a mesh (automatic ones may share rows and units), a
            token lies outside the vocabulary, the carry's leaves disagree about N, logits are not `(N, V)`, `top_k`
            exceeds V, or the beam is wider than the vocabulary allows.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def decoder(params, carry, token):
        ...     hidden = jnp.tanh(carry + params["embedding"][token])
        ...     return hidden, hidden @ params["embedding"].T
        >>> params = {"embedding": jax.random.normal(jax.random.key(0), (5, 3))}
        >>> decoded = rs.decode(decoder, params, jnp.zeros((2, 3)), start=0, end=4, max_steps=6)
        >>> decoded.tokens.shape, decoded.scores.shape
        ((6, 2), (2,))
        >>> beam = rs.decoding.Beam(4, n_best=2, length_penalty=rs.decoding.GNMTPenalty(0.6))
        >>> decoded = rs.decode(decoder, params, jnp.zeros((2, 3)), start=0, end=4, max_steps=6, strategy=beam)
        >>> decoded.tokens.shape, decoded.scores.shape
        ((6, 2, 2), (2, 2))
    """
    if not isinstance(strategy, Greedy | Sample | Beam):
        raise TypeError(
            f"decode: `strategy` must be a Greedy, Sample or Beam of rnnscan.decoding; got {strategy!r}. Write "
            "strategy=rnnscan.decoding.Beam(4), say."
        )
    keys = _check_key(strategy, key)
    request = validate(
        decoder,
        params,
        carry,
        start=start,
        end=end,
        max_steps=max_steps,
        has_aux=has_aux,
        strategy=strategy,
        keys=keys,
    )
    observe_loop("decode", request.step, request.carry, request.start)
    if isinstance(strategy, Sample):
        _check_top_k(strategy, request.vocabulary)
        return decode_tokens(request, draw_with(strategy, _keys_of_rows(keys, request)))
    if isinstance(strategy, Beam):
        return search(request, strategy)
    return decode_tokens(request, choose_greedily)


def _check_key(strategy: Strategy, key: Any) -> Any:
    """The key or keys of a `Sample`, typed; None for other strategies."""
    if not isinstance(strategy, Sample):
        if key is not None:
            raise TypeError(
                f"decode: {type(strategy).__name__} draws nothing, so `key` must be None; got {describe(key)}. Pass a "
                "key with Sample."
            )
        return None
    if key is None:
        raise TypeError("decode: Sample needs a `key`; got None. Pass key=jax.random.key(seed).")
    if isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim:
        key = jax.random.wrap_key_data(key)
    if not isinstance(key, jax.Array) or not is_key(key) or key.ndim > 1:
        raise TypeError(
            f"decode: `key` must be a PRNG key, or N of them; got {describe(key)}. Make them with jax.random.key(seed) "
            "and jax.random.split(key, N)."
        )
    return key


def _keys_of_rows(keys: Any, request: DecodeRequest) -> Any:
    if not keys.ndim:
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(keys, jnp.arange(request.rows))
    if len(keys) != request.rows:
        raise ValueError(
            f"decode: `key` must be one key, or one for each of the {request.rows} rows; got {len(keys)} keys. Make "
            "them with jax.random.split(key, N)."
        )
    return keys


def _check_top_k(strategy: Sample, vocabulary: int) -> None:
    if strategy.top_k is not None and strategy.top_k > vocabulary:
        raise ValueError(
            f"decode: `top_k` must be at most V; got top_k={strategy.top_k}, and the logits have V = {vocabulary}. "
            "Use top_k=None for all tokens."
        )
