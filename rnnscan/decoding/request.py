"""DecodeRequest: a checked call of `decode`, which the strategies run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.step_wrappers import Length


# decoder(params, carry, tokens) -> (carry, logits), or (carry, (logits, aux)).
Decoder: TypeAlias = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class DecodeRequest:
    """A checked call of `decode`.

    Attributes:
        step: `(carry, tokens) -> (carry, (log-probabilities, aux))`, for N rows: int32 tokens `(N,)`, and
            log-probabilities `(N, V)` in at least float32.
        carry: the carry before the first step, leaves `(N, ...)` or `()`.
        start: the tokens before the first step, int32 `(N,)`.
        end: the end token, or None.
        max_steps: T.
        log_probs: the type of the log-probabilities.
        aux: the types of one step's aux, leaves `(N, ...)`.
        varying: the axes of a mesh over which `jax.shard_map` varies any of these, or other arguments of `decode`.
    """

    step: Callable[[Any, Int[Array, " rows"]], tuple[Any, tuple[Any, Any]]]
    carry: Any
    start: Int[Array, " rows"]
    end: int | None
    max_steps: int
    log_probs: jax.ShapeDtypeStruct
    aux: Any
    varying: frozenset[str]

    @property
    def rows(self) -> Length:
        """N."""
        return self.log_probs.shape[0]

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.log_probs.shape[1]

    @property
    def padding(self) -> int:
        """The token after the end."""
        return 0 if self.end is None else self.end

    def ends(self, tokens: Int[Array, "..."]) -> Any:
        """Whether tokens are the end token."""
        return jnp.zeros(tokens.shape, bool) if self.end is None else tokens == self.end

    def vary(self, state: Any) -> Any:
        """The state before the first step, which must vary over the axes over which the state after a step does."""

        def cast(leaf: Any) -> Any:
            more = self.varying - varying_axes(leaf)
            return lax.pcast(leaf, tuple(sorted(more)), to="varying") if more else leaf

        return jax.tree.map(cast, state)


def varying_axes(tree: Any) -> frozenset[str]:
    """The axes of a mesh over which `jax.shard_map` varies the leaves of a pytree, or their types."""
    types = [leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf) for leaf in jax.tree.leaves(tree)]
    varying = [getattr(aval, "manual_axis_type", None) for aval in types]
    return frozenset(axis for axes in varying if axes is not None for axis in axes.varying)


def log_probabilities(logits: Float[Array, "... vocabulary"]) -> Float[Array, "... vocabulary"]:
    """The log-softmax, in float32 for narrower logits."""
    return jax.nn.log_softmax(logits.astype(at_least_float32(logits.dtype)))
