"""Flax's `nnx.Bidirectional`, with resets and random choices."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Integer

from rnnscan._flax.sequence import run_both


class Bidirectional(nnx.Bidirectional):
    """Run two RNNs over the same inputs, one of them in reverse, and merge their outputs.

    It replaces `flax.nnx.Bidirectional`: same arguments, results and state. It adds `reset`, `reset_to` and `key`. Each
    RNN has its own memory choice.

    Args:
        forward_rnn: an `RNN`, of rnnscan or Flax.
        backward_rnn: the RNN to run in reverse; its outputs come in input order. The same object shares its
            parameters, with Flax's warning.
        merge_fn: merges the forward and backward outputs; by default it concatenates them along the last axis.
        time_major: whether inputs are `(T, *batch, *features)` rather than `(*batch, T, *features)`.
        return_carry: whether to return (carry, outputs) rather than outputs.
        rngs: as in `RNN`, for both.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from rnnscan.nnx import RNN, Bidirectional
        >>> rngs = nnx.Rngs(0)
        >>> model = Bidirectional(RNN(nnx.GRUCell(3, 4, rngs=rngs)), RNN(nnx.GRUCell(3, 4, rngs=rngs)))
        >>> model(jnp.ones((2, 5, 3)), seq_lengths=jnp.array([5, 4])).shape
        (2, 5, 8)

    Source: Schuster and Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: tuple[Any, Any] | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        seq_lengths: Integer[Array, "*batch"] | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        reset: Bool[Array, "*steps"] | None = None,
        reset_to: tuple[Any, Any] | None = None,
        key: Array | None = None,
    ) -> Any:
        """Run both over the inputs.

        Args:
            inputs: the sequences, `(*batch, T, *features)`, or `(T, *batch, *features)` if time-major.
            initial_carry: the carries to start from, (forward, backward); None: the cells'.
            rngs: replaces the module's own.
            seq_lengths: `(*batch)` integers, as in `RNN`.
            return_carry: overrides the attribute.
            time_major: overrides the attribute.
            reverse: unused, as in Flax: a `Bidirectional` may replace an RNN.
            keep_order: unused too.
            reset: as in `RNN`, for both.
            reset_to: the carries that `reset` goes back to, (forward, backward); either may be None. None: the cells'
                own.
            key: as in `RNN`; each direction derives its own.

        Returns:
            The merged outputs, in the layout of the inputs; with `return_carry` ((forward, backward), outputs).

        Raises:
            TypeError, ValueError: as the two RNNs do.
        """
        rngs = self.rngs if rngs is None else rngs
        # Flax's own RNN has no argument `key`.
        keys: Any = ({}, {}) if key is None else tuple({"key": one} for one in jax.random.split(key))
        return run_both(
            "nnx.Bidirectional",
            self,
            inputs,
            initial_carry=initial_carry,
            return_carry=return_carry,
            time_major=time_major,
            reset=reset,
            reset_to=reset_to,
            of_each=keys,
            seq_lengths=seq_lengths,
            # As in Flax, both draw from one stream, the forward RNN first.
            rngs=rngs.carry if isinstance(rngs, nnx.Rngs) else rngs,
        )
