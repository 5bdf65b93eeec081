"""ensemble(): several decoders as one."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from rnnscan._util import pytrees
from rnnscan._util.messages import describe
from rnnscan.decoding.request import Decoder, log_probabilities


Average: TypeAlias = Literal["log_probs", "probs"]


@dataclass(frozen=True)
class Ensemble:
    """Several decoders over the same tokens. Made by `ensemble`."""

    decoders: tuple[Decoder, ...]
    average: Average = "log_probs"
    has_aux: bool = False

    @property
    def returns_log_probs(self) -> bool:
        """True: `decode` takes the averages as they are."""
        return True

    def __call__(
        self, params: tuple[Any, ...], carry: tuple[Any, ...], token: Int[Array, " rows"]
    ) -> tuple[tuple[Any, ...], Any]:
        """One step of all decoders: `(params, carry, token) -> (carry, log-probabilities)`."""
        self._check(params, carry)
        carries, outputs = [], []
        for decoder, decoder_params, decoder_carry in zip(self.decoders, params, carry, strict=True):
            new_carry, output = decoder(decoder_params, decoder_carry, token)
            carries.append(new_carry)
            outputs.append(output)
        logits = [output[0] for output in outputs] if self.has_aux else outputs
        log_probs = self._averaged(logits)
        aux = tuple(output[1] for output in outputs) if self.has_aux else None
        return tuple(carries), (log_probs, aux) if self.has_aux else log_probs

    def _averaged(self, logits: list[Any]) -> Any:
        if any(not hasattr(scores, "shape") or scores.shape != logits[0].shape for scores in logits):
            shapes = ", ".join(str(jax.tree.map(describe, scores)) for scores in logits)
            raise ValueError(
                f"decoding.ensemble: all decoders must return logits of one shape (N, V); got {shapes}. They must "
                "share a vocabulary. If they return (logits, aux), pass has_aux=True."
            )
        log_probs = jnp.stack(
            [
                scores if getattr(decoder, "returns_log_probs", False) else log_probabilities(scores)
                for decoder, scores in zip(self.decoders, logits, strict=True)
            ]
        )
        if self.average == "log_probs":
            return log_probs.mean(axis=0)
        # Rounding must not make a log-probability positive: the early stop of beam search relies on that.
        return jnp.minimum(jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits)), 0)

    def _check(self, params: Any, carry: Any) -> None:
        for argument, tree in (("parameters", params), ("carry", carry)):
            if not isinstance(tree, tuple) or len(tree) != len(self.decoders):
                raise TypeError(
                    f"decoding.ensemble: the {argument} must be a tuple with an entry for each of the "
                    f"{len(self.decoders)} decoders; got {jax.tree.structure(tree)}."
                )


pytrees.register(Ensemble, "decoders")


def ensemble(*decoders: Decoder, average: Average = "log_probs", has_aux: bool = False) -> Ensemble:
    """Make one decoder of several over the same vocabulary.

        "log_probs":  log p(y) = mean_m log p_m(y)         the geometric mean, not normalized, as in Caffe2
        "probs":      log p(y) = log mean_m p_m(y)         the arithmetic mean

    Args:
        decoders: the decoders.
        average: what to average.
        has_aux: whether all decoders return `(carry, (logits, aux))`.

    Returns:
        A decoder for `decode`, over tuples of the decoders' parameters and carries. It returns log-probabilities, and
        `decode` does not normalize them again. Its aux is the tuple of theirs; Caffe2 averages attention weights.

    Raises:
        TypeError: if no decoder is passed, or one is not callable.
        ValueError: if `average` is unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def table(params, carry, token):
        ...     return carry, params[token]
        >>> decoder = rs.decoding.ensemble(table, table)
        >>> params = (jnp.eye(4), 2 * jnp.eye(4)[::-1])
        >>> decoded = rs.decode(decoder, params, ((), ()), start=jnp.array([1, 2]), end=3, max_steps=5)
        >>> decoded.tokens[:, 0].tolist()
        [2, 1, 2, 1, 2]
    """
    if not decoders or not all(callable(decoder) for decoder in decoders):
        got = ", ".join(map(describe, decoders)) or "none"
        raise TypeError(f"decoding.ensemble: pass decoders one by one, ensemble(decoder, decoder); got {got}.")
    if average not in get_args(Average):
        raise ValueError(f"decoding.ensemble: `average` must be one of {get_args(Average)}; got {average!r}.")
    return Ensemble(decoders, average, has_aux)
