"""Flax's `nn.Bidirectional`, with resets."""

from typing import Any

import jax
from flax import linen as nn
from flax.typing import PRNGKey
from jaxtyping import Array, Bool, Integer, Num

from rnnscan._flax.sequence import run_both


class Bidirectional(nn.Bidirectional):
    """Run two RNNs over the same inputs, one of them in reverse, and merge their outputs.

    It replaces `flax.linen.Bidirectional` and adds `reset` and `reset_to`. Each RNN has its own memory choice.

    Args:
        forward_rnn: an `RNN`, of rnnscan or Flax.
        backward_rnn: the RNN to run in reverse; its outputs come in input order. The same object shares its
            parameters, with Flax's warning.
        merge_fn: merges the forward and backward outputs; by default it concatenates them along the last axis.
        time_major: whether inputs are `(T, *batch, *features)` rather than `(*batch, T, *features)`.
        return_carry: whether to return (carry, outputs) rather than outputs.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from flax import linen as nn
        >>> from rnnscan import linen
        >>> model = linen.Bidirectional(linen.RNN(nn.GRUCell(4)), linen.RNN(nn.GRUCell(4)))
        >>> outputs, variables = model.init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
        >>> outputs.shape, list(variables["params"])
        ((2, 5, 8), ['forward_rnn', 'backward_rnn'])

    Source: Schuster and Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """

    forward_rnn: Any
    backward_rnn: Any

    def __call__(
        self,
        inputs: Num[Array, "*axes features"],
        *,
        initial_carry: Any = None,
        init_key: PRNGKey | None = None,
        seq_lengths: Integer[Array, "*batch"] | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        reset: Bool[Array, "*rows"] | None = None,
        reset_to: Any = None,
    ) -> Any:
        """Run both over the inputs.

        Args:
            inputs: the sequences, `(*batch, T, *features)`, or `(T, *batch, *features)` if time-major.
            initial_carry: the carries to start from, (forward, backward); None: the cells'.
            init_key: a key for the cells' carries; None: `jax.random.key(0)` for both.
            seq_lengths: `(*batch)` integers, as in `RNN`.
            return_carry: overrides the attribute.
            time_major: overrides the attribute.
            reverse: unused, as in Flax: a `Bidirectional` may replace an RNN.
            keep_order: unused too.
            reset: as in `RNN`, for both.
            reset_to: the carries that `reset` goes back to, (forward, backward); either may be None. None: the cells'
                own.

        Returns:
            The merged outputs, in the layout of the inputs; with `return_carry` ((forward, backward), outputs).
        """
        keys = (None, None) if init_key is None else jax.random.split(init_key)
        return run_both(
            "linen.Bidirectional",
            self,
            inputs,
            initial_carry=initial_carry,
            return_carry=return_carry,
            time_major=time_major,
            reset=reset,
            reset_to=reset_to,
            of_each=({"init_key": keys[0]}, {"init_key": keys[1]}),
            seq_lengths=seq_lengths,
        )
