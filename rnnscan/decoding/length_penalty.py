"""Length penalties: divisors that let hypotheses of different lengths compete."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Integer

from rnnscan.decoding._numbers import check_number


@runtime_checkable
class LengthPenalty(Protocol):
    """Any callable from lengths to positive divisors. It must be hashable, so that a strategy is."""

    def __call__(self, lengths: Any, /) -> Any:
        """The divisors of the scores of hypotheses.

        Args:
            lengths: floating, any shape, at least 1: numbers of tokens, the end token included.

        Returns:
            Positive divisors of the same shape.
        """
        ...


@dataclass(frozen=True)
class GNMTPenalty:
    """The length penalty of GNMT.

        lp(Y) = (5 + |Y|)^alpha / (5 + 1)^alpha

    |Y| counts the end token.

    Args:
        alpha: at least 0. 0 does not normalize. Wu et al. use 0.2; many systems use 0.6.

    Raises:
        ValueError: if `alpha` is not a finite number of at least 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan import decoding
        >>> decoding.GNMTPenalty(alpha=1.0)(jnp.array([1.0, 7.0])).tolist()
        [1.0, 2.0]

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", equation 14.
    """

    alpha: float | int = 0.6

    def __post_init__(self) -> None:
        check_number("GNMTPenalty", "alpha", self.alpha, least=0)

    def __call__(self, lengths: Integer[Array, "..."] | Float[Array, "..."]) -> Float[Array, "..."]:
        """The divisors `lp` of hypotheses with these numbers of tokens."""
        return ((5 + lengths) / 6.0) ** self.alpha


@dataclass(frozen=True)
class PowerPenalty:
    """A power of the length.

        lp(Y) = |Y|^alpha

    |Y| counts the end token. With `alpha=1` the score is the mean log-probability of a token.

    Args:
        alpha: at least 0. 0 does not normalize.

    Raises:
        ValueError: if `alpha` is not a finite number of at least 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan import decoding
        >>> decoding.PowerPenalty(alpha=2.0)(jnp.array([1.0, 3.0])).tolist()
        [1.0, 9.0]

    Source: Graves 2012, "Sequence Transduction with Recurrent Neural Networks", algorithm 1 (alpha = 1). Wu et al.
    2016, "Google's Neural Machine Translation System", section 7 (alpha below 1).
    """

    alpha: float | int = 1.0

    def __post_init__(self) -> None:
        check_number("PowerPenalty", "alpha", self.alpha, least=0)

    def __call__(self, lengths: Integer[Array, "..."] | Float[Array, "..."]) -> Float[Array, "..."]:
        """The divisors `lp` of hypotheses with these numbers of tokens."""
        return (1.0 * lengths) ** self.alpha
