"""Strategies: how `decode` chooses tokens."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util import pytrees
from rnnscan._util.messages import describe
from rnnscan.decoding._numbers import check_count, check_number
from rnnscan.decoding.length_penalty import LengthPenalty


@dataclass(frozen=True)
class Greedy:
    """The most likely token at each step. The lowest of equally likely tokens wins.

    Example:
        >>> from rnnscan import decoding
        >>> decoding.Greedy()
        Greedy()
    """


pytrees.register(Greedy)


@dataclass(frozen=True)
class Sample:
    """Draw each token from the decoder's distribution, with the tail cut off if wanted.

        p = softmax(logits / temperature)

    `top_k`, `top_p` and `min_p` then remove tokens, in this order. Each works on the distribution that the one before
    left, renormalized. Of equally likely tokens at a cut, the lowest stay for `top_k` and `top_p`; `min_p` treats them
    alike.

    `temperature`, `top_p` and `min_p` are leaves of a pytree. A jitted function that takes the strategy as an argument
    compiles once for all their values. Traced values are not checked.

    Args:
        temperature: above 0. Below 1 it favors likely tokens.
        top_k: keep the k most likely tokens, from 1 to V. None: all.
        top_p: keep the smallest set of most likely tokens with a probability of at least `top_p`, in (0, 1]. 1 or None:
            all.
        min_p: keep the tokens with at least `min_p` times the probability of the most likely one, in [0, 1]. 0 or None:
            all.

    Raises:
        TypeError: if an option is not a number, or `top_k` not an integer.
        ValueError: if an option is out of its range.

    Example:
        >>> from rnnscan import decoding
        >>> decoding.Sample(temperature=0.8, top_k=40)
        Sample(temperature=0.8, top_k=40, top_p=None, min_p=None)

    Source: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k). Holtzman et al. 2020, "The Curious Case of
    Neural Text Degeneration", section 3.1 (top-p). Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling for
    Creative and Coherent LLM Outputs" (min-p).
    """

    temperature: Any = 1.0
    top_k: int | None = None
    top_p: Any = None
    min_p: Any = None

    def __post_init__(self) -> None:
        check_number("Sample", "temperature", self.temperature, above=0)
        check_count("Sample", "top_k", self.top_k, optional=True)
        if self.top_p is not None:
            check_number("Sample", "top_p", self.top_p, above=0, most=1)
        if self.min_p is not None:
            check_number("Sample", "min_p", self.min_p, least=0, most=1)


pytrees.register(Sample, "temperature", "top_p", "min_p")


@dataclass(frozen=True)
class Beam:
    """Beam search: keep the `size` best hypotheses at each step.

        raw(Y) = sum_t (log p(y_t | y_<t) + word_rewards[y_t])
        score(Y) = raw(Y) / length_penalty(|Y|)

    At each step all live hypotheses are extended by all tokens, and the `size` extensions of the greatest raw score
    stay. Those that end move to the set of finished hypotheses: they keep their score, and take no place among the live
    ones. At step `max_steps` the others finish as well, without an end token. A row stops when no live hypothesis can
    reach the score of its `n_best`-th finished one.

    Equal scores: the extension of the better hypothesis comes first, then the lowest token, and of finished hypotheses
    the earlier one. Tokens with a logit of -inf are never chosen.

    `size=1` without rewards is `Greedy`, whatever the length penalty.

    Args:
        size: the number of hypotheses that are kept at a step. It may exceed V, and only V slots are filled after the
            first step then. It must not exceed the number of extensions that the last step can have,
            V (V - 1)^(max_steps - 1), or V^max_steps without an end token. A search of that size is exhaustive.
        n_best: the number of hypotheses to return, from 1 to `size`.
        length_penalty: a `GNMTPenalty`, a `PowerPenalty`, or a function of lengths. None: no normalization, as in
            Caffe2.
        word_rewards: `(V,)`, what each token adds to the score, the end token's included. -inf forbids a token. A
            sequence of numbers or an array, which is a leaf of the strategy as a pytree. None: no rewards.

    Raises:
        TypeError: if `size` or `n_best` is not an integer, `length_penalty` not callable, or rewards are not numbers.
        ValueError: if `size` or `n_best` is out of its range, or rewards are not `(V,)`, NaN or +inf.

    Example:
        >>> from rnnscan import decoding
        >>> decoding.Beam(4, n_best=2, length_penalty=decoding.GNMTPenalty(0.6))
        Beam(size=4, n_best=2, length_penalty=GNMTPenalty(alpha=0.6), word_rewards=None)

    Source: Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", section 3.2. The stop is that
    of Huang et al. 2017, "When to Finish? Optimal Beam Search for Neural Text Generation", extended to rewards and
    length penalties. Word rewards are Caffe2's.
    """

    size: int
    n_best: int = 1
    length_penalty: LengthPenalty | None = None
    word_rewards: Any = None

    def __post_init__(self) -> None:
        check_count("Beam", "size", self.size)
        check_count("Beam", "n_best", self.n_best)
        if self.n_best > self.size:
            raise ValueError(
                f"Beam: `n_best` must be at most `size`; got n_best={self.n_best} and size={self.size}. "
                "Search with a wider beam."
            )
        if self.length_penalty is not None and not callable(self.length_penalty):
            raise TypeError(
                "Beam: `length_penalty` must be a GNMTPenalty, a PowerPenalty, another function of lengths, or None; "
                f"got {self.length_penalty!r}. Write length_penalty=rnnscan.decoding.PowerPenalty(1.0), say."
            )
        if self.word_rewards is not None:
            _check_rewards(self.word_rewards)


pytrees.register(Beam, "word_rewards")

Strategy: TypeAlias = Greedy | Sample | Beam


def _check_rewards(rewards: Any) -> None:
    known = not isinstance(rewards, jax.core.Tracer)
    values = np.asarray(rewards) if known else rewards
    real = jnp.issubdtype(values.dtype, jnp.floating) or jnp.issubdtype(values.dtype, jnp.integer)
    if not real:
        raise TypeError(f"Beam: `word_rewards` must be real numbers; got {describe(values)}.")
    if values.ndim != 1:
        raise ValueError(f"Beam: `word_rewards` must be (V,), one number for each token; got {describe(values)}.")
    if known and not (values < np.inf).all():
        raise ValueError("Beam: `word_rewards` must be finite, or -inf to forbid a token; got NaN or +inf.")
