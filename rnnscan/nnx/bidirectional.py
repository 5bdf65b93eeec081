"""Flax's `nnx.Bidirectional`, with resets and random choices."""

from typing import Any

import jax
from absl import logging
from flax import nnx
from jaxtyping import Array, Bool, Integer

from rnnscan._module_carries import targets_of_both
from rnnscan.nets.pieces import BOTH_DIRECTIONS, check_not_handed_on


class Bidirectional(nnx.Bidirectional):
    """Run two RNNs over the same inputs, one of them in reverse, and merge their outputs: Flax's `nnx.Bidirectional`.

    It takes the place of `flax.nnx.Bidirectional`, whose arguments, results and state it has, and adds
    `reset`, `reset_to` and `key`. The memory choice is that of each RNN.

    Args:
        forward_rnn: an `RNN`, of rnnscan or Flax.
        backward_rnn: another, which is run in reverse with its outputs in the order of the inputs. The same object
            shares its parameters, and Flax's warning is given.
        merge_fn: makes one output of both, forward first; by default it concatenates along the last axis.
        time_major: whether inputs are `(T, *batch, *features)`, and not `(*batch, T, *features)`.
        return_carry: whether to return (carry, outputs), and not outputs alone.
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
            inputs: the sequences, `(*batch, T, *features)`, or `(T, *batch, *features)` where time-major.
            initial_carry: the carries to start from, (forward, backward); None: the cells'.
            rngs: in place of the module's own.
            seq_lengths: `(*batch)` integers: step t of a row is valid where `t < length`. One above T
                counts as T.
            return_carry: instead of the attribute.
            time_major: instead of the attribute.
            reverse: not used: in Flax too it is there so that one may stand in the place of an RNN.
            keep_order: not used, likewise.
            reset: as in `RNN`, for both.
            reset_to: the carries that `reset` goes back to, (forward, backward), either of which may be None; None: the
                cells' own.
            key: as in `RNN`; each direction derives its own.

        Returns:
            The merged outputs, in the layout of the inputs; with `return_carry` ((forward, backward), outputs).

        Raises:
            TypeError, ValueError: as the two do.
        """
        time_major = self.time_major if time_major is None else time_major
        return_carry = self.return_carry if return_carry is None else return_carry
        rngs = self.rngs if rngs is None else rngs
        if self.forward_rnn is self.backward_rnn:
            logging.warning("forward_rnn and backward_rnn is the same object, so they will share parameters.")
        check_not_handed_on("nnx.Bidirectional", initial_carry, BOTH_DIRECTIONS)
        forward_carry, backward_carry = (None, None) if initial_carry is None else initial_carry
        options: dict[str, Any] = {"seq_lengths": seq_lengths, "return_carry": True, "time_major": time_major}
        # As in Flax, both draw from one stream, the forward RNN first.
        options["rngs"] = rngs.carry if isinstance(rngs, nnx.Rngs) else rngs
        # Flax's own RNN knows neither resets nor keys, and need not where there are none.
        if reset is not None:
            options["reset"] = reset
        targets = targets_of_both("nnx.Bidirectional", reset_to, reset)
        keys: Any = [{}, {}] if key is None else [{"key": one} for one in jax.random.split(key)]
        forward_carry, forward = self.forward_rnn(
            inputs, initial_carry=forward_carry, reverse=False, **options, **keys[0], **targets[0]
        )
        backward_carry, backward = self.backward_rnn(
            inputs, initial_carry=backward_carry, reverse=True, keep_order=True, **options, **keys[1], **targets[1]
        )
        outputs = jax.tree.map(self.merge_fn, forward, backward)
        return ((forward_carry, backward_carry), outputs) if return_carry else outputs
