"""A module that goes on where its last call ended."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Integer

from rnnscan._messages import describe, describe_shape
from rnnscan.nets.pieces import BOTH_DIRECTIONS, REVERSED
from rnnscan.nnx.initial_carry import make_carry
from rnnscan.nnx.rnn import RNN


class StreamState(nnx.Variable[Array]):
    """A part of the carry that a `Streaming` module keeps between its calls."""


class Streaming(nnx.Module):
    """An RNN that keeps its carry: each call goes on where the last one ended, by one step or by a window of steps.

    It serves inputs as they come in, and trains on windows of a long sequence: between two calls of a training step the
    carry is a constant, so gradients end at the window's first step (truncated backpropagation through time).

    Args:
        rnn: the `RNN`, whose options hold; it may be one that was trained on whole sequences.
        input_shape: the shape of one step's input, `(*batch, *features)`. The batch is fixed: a stream has one carry a
            row.
        dtype: of the inputs. The carry of a `Cell` is typed like them; Flax's cells have their `param_dtype`.

    Attributes:
        carry: the carry, each leaf in a `StreamState`. `nnx.to_pure_dict(nnx.state(module, StreamState))` is all that
            a stream must remember, to be stored, and to be put back by `nnx.update`.

    Raises:
        TypeError: if it is no `RNN`.
        ValueError: if it is one that runs in reverse.

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
        """Go on by one step, or by a window of steps.

        Args:
            inputs: one step's, `(*batch, *features)`; or those of a window, `(*batch, T, *features)`, or
                `(T, *batch, *features)` where the RNN is time-major.
            seq_lengths: `(*batch)` integers, how many steps of a window are valid in each row; a row goes on after its
                last valid one. For windows only.
            reset: booleans of the shape of the inputs without features, true at the first step of an episode or
                document: there the carry goes back to `reset_to`, before that step.
            reset_to: as in `RNN`; None: the cell's own carry.
            rngs: where a random initial carry gets its keys from, with `reset`.
            key: as in `RNN`: training.
            first_step: as in `RNN`.

        Returns:
            The output of the step, `(*batch, ...)`, or the outputs of the window, laid out as its inputs.

        Raises:
            ValueError: if the inputs are of another batch or size than the carry.
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
        """Start anew: put the cell's initial carry in the place of the one that is kept.

        Args:
            rngs: where a random initial carry gets its keys from, in place of the RNN's own stream.
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
                f"{describe_shape(window)}, a window, as the carry that is kept; got {describe(inputs)}. For another "
                "batch make another Streaming of the same RNN: each of its rows is a stream of its own."
            )
        if is_step and seq_lengths is not None:
            raise ValueError(
                f"nnx.Streaming: `seq_lengths` is for windows; got it with one step, {describe(inputs)}. Give the step "
                "as a window of one."
            )


def _values(variables: Any) -> Any:
    return jax.tree.map(lambda variable: variable[...], variables, is_leaf=_is_variable)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)
