"""The vocabulary of an exported language model: its tokens, as data."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import describe
from rnnscan.export.common.specs import ArraySpec


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a language model reads and predicts.

    Attributes:
        tokens: the bytes of each token. Its place is its number.

    Raises:
        TypeError: if a token is not `bytes`.
        ValueError: if there are none, or if a token is empty or there twice.

    Example:
        >>> vocabulary = Vocabulary((b"a", b"b", b"ab"))
        >>> vocabulary.encode("abba")
        [2, 1, 0]
        >>> vocabulary.tokens[2]
        b'ab'
    """

    tokens: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for number, token in enumerate(self.tokens):
            if not isinstance(token, bytes):
                raise TypeError(
                    f"export.save: `vocabulary` must be a list of bytes; got {describe(token)} at {number}. Encode it."
                )
        if b"" in self.tokens or len(self._numbers) < len(self.tokens) or not self.tokens:
            raise ValueError(
                "export.save: `vocabulary` must have tokens, each one once and none of them empty; got "
                f"{len(self.tokens)}, of which {len(self._numbers)} differ. Leave out the others."
            )

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.tokens))

    def encode(self, text: str | bytes) -> list[int]:
        """The numbers of the tokens of a text, the longest token that fits first.

        Args:
            text: the text; a string is encoded as UTF-8.

        Raises:
            ValueError: if no token fits.
        """
        encoded = text.encode() if isinstance(text, str) else text
        numbers, place = [], 0
        while place < len(encoded):
            lengths = range(min(self._longest, len(encoded) - place), 0, -1)
            fits = (encoded[place : place + length] for length in lengths)
            token = next((part for part in fits if part in self._numbers), None)
            if token is None:
                raise ValueError(
                    f"generate: the text must consist of tokens of the vocabulary; got {encoded[place : place + 8]!r} "
                    f"at byte {place}. Leave it out."
                )
            numbers.append(self._numbers[token])
            place += len(token)
        return numbers


def dump(vocabulary: Vocabulary) -> bytes:
    """A vocabulary as JSON: its tokens in hexadecimal digits."""
    return json.dumps({"tokens": [token.hex() for token in vocabulary.tokens]}).encode()


def parse(content: bytes) -> Vocabulary:
    """Read a vocabulary. The hash of its file must have been checked.

    Raises:
        ValueError: if it is none.
    """
    try:
        return Vocabulary(tuple(bytes.fromhex(token) for token in json.loads(content)["tokens"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"its vocabulary is none ({type(error).__name__}: {error})") from error


def check_vocabulary(vocabulary: Vocabulary, x: Any, y: Any) -> None:
    """Reject a stream whose steps do not take a token and return logits of all tokens.

    Args:
        vocabulary: the vocabulary.
        x: the specs of one step's input.
        y: the specs of one step's output.

    Raises:
        ValueError: if one of them has another type.
    """
    takes = isinstance(x, ArraySpec) and len(x.shape) == 1 and jnp.issubdtype(jnp.dtype(x.dtype), jnp.integer)
    fits = isinstance(y, ArraySpec) and len(y.shape) == 2 and y.shape[1] == len(vocabulary.tokens)
    if not (takes and fits and jnp.issubdtype(jnp.dtype(y.dtype), jnp.floating)):
        shown = [jax.tree.map(str, specs) for specs in (x, y)]
        raise ValueError(
            "export.save: with `vocabulary`, a step must take the numbers of tokens, int32[N], and return their "
            f"logits, float32[N,{len(vocabulary.tokens)}]; got steps from {shown[0]} to {shown[1]}. Change `cell`."
        )
    if isinstance(x.shape[0], int) and x.shape[0] != 1:
        raise ValueError(
            f"export.save: with `vocabulary`, a step must run for one row, because a text is generated row by row; got "
            f"steps of {x.shape[0]} rows. Name that axis in `dynamic`, or use inputs of one row."
        )
