"""Decoded: what `decode` returns."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from rnnscan._util.messages import describe


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tokens", "lengths", "scores", "token_scores", "aux"],
    meta_fields=[],
)
@dataclass(frozen=True, repr=False, eq=False)
class Decoded:
    """Decoded sequences, time-major. Under `Beam` each array has one more axis, the n-best list, best first.

    It is a pytree, so a jitted function can return it, and `jax.tree.map(lambda leaf: leaf[..., 0], ...)` selects.

    Attributes:
        tokens: int32 `(T, N)`, or `(T, N, n_best)`, with T = `max_steps`. The first token is the one after `start`.
            Tokens after the end token are `end`.
        lengths: int32 `(N,)`, or `(N, n_best)`: the number of tokens, the end token included. A sequence that does not
            end has length T. A place of an n-best list without a sequence has length 0.
        scores: floating, `(N,)` or `(N, n_best)`: what sequences are ranked by. It is the sum of `token_scores`, and
            under `Beam` with word rewards added and divided by the length penalty. It is -inf for a missing
            sequence, and NaN if logits were NaN.
        token_scores: floating, `(T, N)` or `(T, N, n_best)`: the log-probability of each token, given those before it.
            It is 0 after the end token.
        aux: the decoder's aux at each step, leaves `(T, N, ...)` or `(T, N, n_best, ...)`, zero after the end token.
            None without `has_aux`.
    """

    # Not annotated as arrays, because JAX rebuilds pytrees with placeholder leaves.
    tokens: Any
    lengths: Any
    scores: Any
    token_scores: Any
    aux: Any = None

    def __repr__(self) -> str:
        """The types of the fields."""
        fields = ", ".join(f"{name}={jax.tree.map(describe, value)}" for name, value in vars(self).items())
        return f"Decoded({fields})"
