"""Text of an exported language model, token by token."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


# A temperature below is zero in float32.
_LEAST = float(np.finfo(np.float32).tiny)


def check_sampling(length: int, temperature: int | float) -> None:
    """Reject a length or temperature out of range."""
    if length < 0:
        raise ValueError(f"generate: `length` must be at least 0; got {length}.")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"generate: `temperature` must be finite and at least 0; got {temperature}.")


def draw_tokens(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    prompt: Sequence[int],
    length: int,
    *,
    dtype: Any,
    temperature: int | float,
    seed: int,
) -> Iterator[int]:
    """Draw tokens, each from the logits after all before it.

        token_{t+1} ~ softmax(logits_t / temperature)

    Args:
        step: `(carry, tokens (1,)) -> (carry, logits (1, V))`.
        carry: the carry before the prompt.
        prompt: the tokens before the text, at least one.
        length: the number of tokens.
        dtype: the dtype of tokens.
        temperature: 0 takes the likeliest token.
        seed: the seed of the draws.

    Returns:
        The tokens, one after the other.
    """
    key = jax.random.key(seed)
    for number in prompt[:-1]:
        carry, _ = step(carry, jnp.asarray([number], dtype))
    token = jnp.asarray(prompt[-1:], dtype)
    for _ in range(length):
        carry, logits = step(carry, token)
        key, token = _draw(key, logits, temperature) if temperature >= _LEAST else (key, _likeliest(logits))
        token = token.astype(dtype)
        yield int(token[0])


def sharpened(
    logits: Float[Array, "*rows vocabulary"], temperature: int | float | Float[Array, ""]
) -> Float[Array, "*rows vocabulary"]:
    """Logits by a temperature, up to a constant: their largest is 0, so that none overflows."""
    return (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature


@jax.jit
def _draw(
    key: Array, logits: Float[Array, "1 vocabulary"], temperature: int | float | Float[Array, ""]
) -> tuple[Array, Int[Array, "1"]]:
    key, draw_key = jax.random.split(key)
    return key, jax.random.categorical(draw_key, sharpened(logits, temperature))


@jax.jit
def _likeliest(logits: Float[Array, "1 vocabulary"]) -> Int[Array, "1"]:
    return jnp.argmax(logits, axis=-1)
