"""A module that keeps its carry between calls."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Integer

from rnnscan._util.messages import describe, describe_shape
from rnnscan.nets.pieces import BOTH_DIRECTIONS, REVERSED
from rnnscan.nnx.initial_carry import make_carry
from rnnscan.nnx.rnn import RNN


class StreamState(nnx.Variable[Array]):
    """A leaf of the carry of a `Streaming` module."""


class Streaming(nnx.Module):
    """An RNN that keeps its carry: each call continues the last one, by one step or by a window of steps.

    Use it for inputs that arrive over time, and to train on windows of a long sequence. Between training steps the
    carry is a constant: truncated backpropagation through time.

    Args:
        rnn: the `RNN`, with its options; it may have been trained on whole sequences.
        input_shape: the shape of one step's input, `(*batch, *features)`. The batch is fixed: each row is a stream.
        dtype: the inputs' dtype. The carry of a `Cell` has it; Flax's cells use their `param_dtype`.

    Attributes:
        carry: the carry, each leaf in a `StreamState`. `nnx.to_pure_dict(nnx.state(module, StreamState))` is the whole
            state of the streams; restore it with `nnx.update`.

    Raises:
        TypeError: if `rnn` is not an `RNN`.
        ValueError: if `rnn` runs in reverse.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from rnnscan.nnx import RNN, Streaming
        >>> stream = Streaming(RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))), input_shape=(2, 3))
        >>> step = nnx.jit(lambda stream, x: stream(x))
        >>> step(stream, jnp.ones((2, 3))).shape  # one step
        (2, 4)
        >>> step(stream, jnp.ones((2, 5, 3))).shape  # five more
        (2, 5, 4)
        >>> stream.reset_state()
    """

    def __init__(self, rnn: RNN, input_shape: tuple[int, ...], *, dtype: Any = jnp.float32) -> None:
        if not isinstance(rnn, RNN):
            raise TypeError(
                f"nnx.Streaming: `rnn` must be a rnnscan.nnx.RNN; got {type(rnn).__name__}. Write "
                f"Streaming(RNN(cell), input_shape). A bidirectional module does not stream: {BOTH_DIRECTIONS}"
            )
        if rnn.reverse:
            raise ValueError(f"nnx.Streaming: the RNN must have reverse=False; got reverse=True. {REVERSED}")
        self.rnn = rnn
        self.input_shape = tuple(input_shape)
        self.dtype = jnp.dtype(dtype)
        self.carry = nnx.data(jax.tree.map(StreamState, self._initial_carry(None)))

    def __call__(
        self,
        inputs: Array,
        *,
        seq_lengths: Integer[Array, "*batch"] | None = None,
        reset: Bool[Array, "*steps"] | None = None,
        reset_to: Any = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        key: Array | None = None,
        first_step: Any = 0,
    ) -> Any:
        """Run one step, or a window of steps.

        Args:
            inputs: one step, `(*batch, *features)`; or a window, `(*batch, T, *features)`, or `(T, *batch, *features)`
                if the RNN is time-major.
            seq_lengths: `(*batch)` integers, the valid steps of a window in each row; a row continues after its last
                valid step. For windows only.
            reset: booleans of the shape of the inputs without features, true at the first step of an episode or
                document. The carry goes back to `reset_to` before that step.
            reset_to: as in `RNN`; None: the cell's own carry.
            rngs: gives keys for a random initial carry, with `reset`.
            key: as in `RNN`: training.
            first_step: as in `RNN`.

        Returns:
            The output of the step, `(*batch, ...)`, or the outputs of the window, in the layout of its inputs.

        Raises:
            ValueError: if the inputs do not fit the carry's batch and size.
            TypeError, ValueError: as `RNN` does.
        """
        is_step = inputs.ndim == len(self.input_shape)
        self._check(inputs, seq_lengths, is_step)
        carry, outputs = self.rnn(
            inputs[None] if is_step else inputs,
            initial_carry=_values(self.carry),
            seq_lengths=seq_lengths,
            return_carry=True,
            time_major=is_step or self.rnn.time_major,
            reset=reset[None] if is_step and reset is not None else reset,
            reset_to=reset_to,
            rngs=rngs,
            key=key,
            first_step=first_step,
        )
        self._keep(carry)
        return jax.tree.map(lambda leaf: leaf[0], outputs) if is_step else outputs

    def reset_state(self, rngs: nnx.Rngs | nnx.RngStream | None = None) -> None:
        """Set the carry to the cell's initial carry.

        Args:
            rngs: gives keys for a random initial carry; None: the RNN's own stream.
        """
        self._keep(self._initial_carry(rngs))

    def _initial_carry(self, rngs: nnx.Rngs | nnx.RngStream | None) -> Any:
        x = jnp.zeros(self.input_shape, self.dtype)
        return make_carry(self.rnn.cell, x, self.rnn.rngs if rngs is None else rngs)

    def _keep(self, carry: Any) -> None:
        for variable, leaf in zip(
            jax.tree.leaves(self.carry, is_leaf=_is_variable), jax.tree.leaves(carry), strict=True
        ):
            variable[...] = leaf

    def _check(self, inputs: Array, seq_lengths: Any, is_step: bool) -> None:
        time_axis = 0 if self.rnn.time_major else len(self.input_shape) - self.rnn.cell.num_feature_axes
        shape = inputs.shape if is_step else inputs.shape[:time_axis] + inputs.shape[time_axis + 1 :]
        if shape != self.input_shape:
            window = (*self.input_shape[:time_axis], "T", *self.input_shape[time_axis:])
            raise ValueError(
                f"nnx.Streaming: inputs must be {describe_shape(self.input_shape)}, one step, or "
                f"{describe_shape(window)}, a window; got {describe(inputs)}. For another batch make another Streaming "
                "of the same RNN."
            )
        if is_step and seq_lengths is not None:
            raise ValueError(
                f"nnx.Streaming: `seq_lengths` must come with a window; got one step, {describe(inputs)}. Pass the "
                "step as a window of one."
            )


def _values(variables: Any) -> Any:
    return jax.tree.map(lambda variable: variable[...], variables, is_leaf=_is_variable)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)
