"""Flax's `nn.Bidirectional`, with resets."""

from typing import Any

import jax
from absl import logging
from flax import linen as nn
from flax.typing import PRNGKey
from jaxtyping import Array, Bool, Integer, Num

from rnnscan._module_carries import targets_of_both
from rnnscan.nets.pieces import BOTH_DIRECTIONS, check_not_handed_on


class Bidirectional(nn.Bidirectional):
    """Run two RNNs over the same inputs, one of them in reverse, and merge their outputs: Flax's `nn.Bidirectional`.

    It takes the place of `flax.linen.Bidirectional`, and adds `reset` and `reset_to`. The memory choice is that of
    each RNN.

    Args:
        forward_rnn: an `RNN`, of rnnscan or Flax.
        backward_rnn: another, which is run in reverse with its outputs in the order of the inputs. The same object
            shares its parameters, and Flax's warning is given.
        merge_fn: makes one output of both, forward first; by default it concatenates along the last axis.
        time_major: whether inputs are `(T, *batch, *features)`, and not `(*batch, T, *features)`.
        return_carry: whether to return (carry, outputs), and not outputs alone.

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
            inputs: the sequences, `(*batch, T, *features)`, or `(T, *batch, *features)` where time-major.
            initial_carry: the carries to start from, (forward, backward); None: the cells'.
            init_key: a key for the cells' carries; None: `jax.random.key(0)` for both.
            seq_lengths: `(*batch)` integers: step t of a row is valid where `t < length`. One above T
                counts as T.
            return_carry: instead of the attribute.
            time_major: instead of the attribute.
            reverse: not used: in Flax too it is there so that one may stand in the place of an RNN.
            keep_order: not used, likewise.
            reset: as in `RNN`, for both.
            reset_to: the carries that `reset` goes back to, (forward, backward), either of which may be None; None: the
                cells' own.

        Returns:
            The merged outputs, in the layout of the inputs; with `return_carry` ((forward, backward), outputs).
        """
        time_major = self.time_major if time_major is None else time_major
        return_carry = self.return_carry if return_carry is None else return_carry
        if self.forward_rnn is self.backward_rnn:
            logging.warning("forward_rnn and backward_rnn is the same object, so they will share parameters.")
        keys = (None, None) if init_key is None else jax.random.split(init_key)
        check_not_handed_on("linen.Bidirectional", initial_carry, BOTH_DIRECTIONS)
        forward_carry, backward_carry = (None, None) if initial_carry is None else initial_carry
        # An RNN of Flax knows no resets, and need not where there are none.
        options: dict[str, Any] = {} if reset is None else {"reset": reset}
        options |= {"seq_lengths": seq_lengths, "return_carry": True, "time_major": time_major}
        targets = targets_of_both("linen.Bidirectional", reset_to, reset)
        forward_carry, forward = self.forward_rnn(
            inputs, initial_carry=forward_carry, init_key=keys[0], reverse=False, **options, **targets[0]
        )
        backward_carry, backward = self.backward_rnn(
            inputs,
            initial_carry=backward_carry,
            init_key=keys[1],
            reverse=True,
            keep_order=True,
            **options,
            **targets[1],
        )
        outputs = jax.tree.map(self.merge_fn, forward, backward)
        return ((forward_carry, backward_carry), outputs) if return_carry else outputs
