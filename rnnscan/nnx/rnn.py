"""`flax.nnx.RNN`, run by rnnscan."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Integer

from rnnscan._checks import check_options
from rnnscan._module_carries import carry_to_reset_to, check_reset_to_has_reset, share_by_rows
from rnnscan._step_wrappers import valid_steps
from rnnscan._zeros import zeros_of_step
from rnnscan.memory import Memory
from rnnscan.nets.pieces import REVERSED, check_not_handed_on
from rnnscan.nnx import checks
from rnnscan.nnx.cell import Cell
from rnnscan.nnx.initial_carry import make_carry
from rnnscan.nnx.module_scan import Call, scan_module
from rnnscan.nnx.sequence import flip, flip_reset, holding_last_valid, resetting


class RNN(nnx.RNN):
    """A cell run over a sequence: `flax.nnx.RNN` with a choice of what is kept in memory.

    It takes the place of `flax.nnx.RNN`: arguments, results and state are the same, so a checkpoint of one loads into
    the other. The cell is one of `flax.nnx`, one of your own that derives from `nnx.RNNCellBase`, or a `Cell`.

    By the rule of memory it keeps inputs and carries for the backward pass, and what the cell names by `rnnscan.name`;
    Flax's own cells name nothing. All else is computed again.

    On purpose it differs from Flax where Flax's way would be of no use:

    - A carry that does not depend on a key, such as zeros, draws none. So no stream of keys changes with a call, there
      need be none (`rngs=False`), and a model works under `jax.grad`, `jax.jit` over a closure and `nnx.merge` within
      them, where Flax raises a `TraceContextError`. A random carry is drawn as Flax draws it.
    - A row of length 0 ends with the carry it started from, and not with that of the last padded step. A length above T
      counts as T. Lengths work with any number of batch axes.
    - The carry after the last valid step is held, and not picked from the carries of all steps.

    As in Flax, the outputs at padded steps are what the cell gives there, and a cell's state, such as the statistics of
    `nnx.BatchNorm`, takes notice of these steps.

    Args:
        cell: the cell.
        time_major: whether inputs and outputs are `(T, *batch, ...)`, and not `(*batch, T, ...)`.
        return_carry: whether the last carry is returned too, before the outputs. With `seq_lengths` it is that after
            each row's last valid step.
        reverse: whether the sequence runs from its last step, or its last valid one, to the first.
        keep_order: whether outputs are in the order of the inputs when `reverse` is true, and not in the order in which
            the steps ran.
        unroll: steps a trip of the loop.
        state_axes: what becomes of the cell's variables, by a filter: `nnx.Carry` if each step gets them as the step
            before left them; None if all get the same, and what they do to them is forgotten; or the number of the axis
            along which each step has its own. None: all are carried.
        broadcast_rngs: a filter of the streams of keys whose count is the same at every step, so that `nnx.Dropout`
            drops the same units at all steps of a call.
        rngs: the stream "carry" of which is forked for random initial carries; True: one of its own; False: none.
        memory: what to keep between the forward and the backward pass; None: plain autodiff of `lax.scan`.
        engine: as in `rnnscan.scan`.
        truncate: no gradient flows through the carry into steps `truncate`, `2 * truncate`, ..., as they run.

    Raises:
        TypeError: if it is no cell, or another argument is of no type that it may be.
        ValueError: if an argument has no value that it may have.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from flax import nnx
        >>> from rnnscan.nnx import RNN
        >>> rnn = RNN(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), memory=rs.Memory(segment="sqrt"))
        >>> inputs = jnp.ones((2, 5, 3))
        >>> rnn(inputs).shape
        (2, 5, 4)
        >>> jax.grad(lambda inputs: rnn(inputs).sum())(inputs).shape  # a TraceContextError with `flax.nnx.RNN`
        (2, 5, 3)
    """

    def __init__(
        self,
        cell: Any,
        *,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int | bool = 1,
        state_axes: Mapping[Any, Any] | None = None,
        broadcast_rngs: Any = None,
        rngs: nnx.Rngs | bool = True,
        memory: Memory | None = Memory(),
        engine: Literal["auto", "fission", "lax"] = "auto",
        truncate: int | None = None,
    ) -> None:
        checks.check_cell("nnx.RNN", cell)
        check_options(memory=memory, unroll=unroll, truncate=truncate, padding="zero", engine=engine)
        state_axes = {...: nnx.Carry} if state_axes is None else state_axes
        checks.check_state_axes("nnx.RNN", state_axes)
        super().__init__(
            cell,
            time_major=time_major,
            return_carry=return_carry,
            reverse=reverse,
            keep_order=keep_order,
            unroll=unroll,
            state_axes=nnx.StateAxes(state_axes),
            broadcast_rngs=broadcast_rngs,
            rngs=rngs,
        )
        self.memory = memory
        self.engine = engine
        self.truncate = truncate

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: Any = None,
        seq_lengths: Integer[Array, "*batch"] | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        reset: Bool[Array, "*steps"] | None = None,
        reset_to: Any = None,
        key: Array | None = None,
        first_step: Any = 0,
    ) -> Any:
        """Run the cell over a sequence.

        Args:
            inputs: `(*batch, T, *features)`, or `(T, *batch, *features)` if time-major.
            initial_carry: the carry to start from; None: the cell's, for most zeros. A leaf may leave out the batch
                axes: its rows share it.
            seq_lengths: `(*batch)` integers: step t of a row is valid where t is below its length. One above
                T counts as T.
            return_carry: in place of the module's own; and so with `time_major`, `reverse` and `keep_order`.
            time_major: see there.
            reverse: see there.
            keep_order: see there.
            rngs: where a random initial carry gets its keys from, in place of the module's own stream.
            reset: booleans of the shape of the inputs without features, true at the first step of an episode or
                document, in the order of time: there the carry goes back to `reset_to`, before that step, or after it
                in reverse.
            reset_to: the carry that `reset` goes back to, like the initial one; a leaf may leave out the batch axes.
                None: the cell's own, by `initialize_carry`. It is never the carry that was passed in: windows, each
                from the carry of the one before, equal the whole.
            key: a PRNG key for the random choices of a `Cell`, such as those of `rnnscan.dropout`: training. None:
                evaluation, without any. The random choices of other modules are up to their own `rngs`.
            first_step: the number of the first step, which choices by `key` depend on: the steps done before, where a
                sequence is run in pieces with one key.

        Returns:
            The outputs, `(*batch, T, ...)` or `(T, *batch, ...)`; with `return_carry` the carry, and the outputs.

        Raises:
            ValueError: if shapes do not fit each other, or `memory` names what the cell does not.
            TypeError: if `key` is given to a cell that cannot take it, or as `rnnscan.scan` does.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order
        features = self.cell.num_feature_axes
        checks.check_inputs("nnx.RNN", inputs, features)
        time_axis = 0 if time_major else inputs.ndim - features - 1
        rows = inputs.shape[: inputs.ndim - features]
        batch = rows[:time_axis] + rows[time_axis + 1 :]
        xs = jnp.moveaxis(inputs, time_axis, 0)
        if reverse:
            check_not_handed_on("nnx.RNN", initial_carry, REVERSED)
        check_reset_to_has_reset("nnx.RNN", reset_to, reset)
        x = zeros_of_step(xs)
        # Once, because a random one draws a key.
        own = cache(partial(make_carry, self.cell, x, self.rngs if rngs is None else rngs))
        if initial_carry is None:
            carry = own()
        else:
            # Only its shapes are read, so it draws from a stream of its own.
            carry = share_by_rows(initial_carry, batch, partial(make_carry, self.cell, x, nnx.Rngs(0)))
        if seq_lengths is not None:
            seq_lengths = checks.as_lengths("nnx.RNN", seq_lengths, batch)
            checks.check_rows("nnx.RNN", "seq_lengths", carry, batch)
        if reset is not None:
            reset = jnp.moveaxis(checks.as_reset("nnx.RNN", reset, rows), time_axis, 0)
            checks.check_rows("nnx.RNN", "reset", carry, batch)
            reset_to = carry_to_reset_to("nnx.RNN", self.cell, reset_to, carry, batch, own)
        if reverse:
            xs = flip(xs, seq_lengths)
            reset = None if reset is None else flip_reset(reset, seq_lengths)

        call, scanned = self._make_call(xs, key, first_step)
        if reset is not None:
            call, scanned = resetting(call, reset_to), (scanned, reset)
        if seq_lengths is None or not return_carry:
            carry, ys = self._scan(call, carry, scanned)
        else:
            valid = valid_steps(seq_lengths, len(xs))
            (_, carry), ys = self._scan(holding_last_valid(call), (carry, carry), (scanned, valid))
        if reverse and keep_order:
            ys = flip(ys, seq_lengths)
        outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, time_axis), ys)
        return (carry, outputs) if return_carry else outputs

    def _make_call(self, xs: Array, key: Array | None, first_step: Any) -> tuple[Call, Any]:
        """One step of the cell, and what it goes over."""
        if key is None:
            return lambda cell, carry, x: cell(carry, x), xs
        if not isinstance(self.cell, Cell):
            raise TypeError(
                f"nnx.RNN: `key` is for the random choices of a rnnscan.nnx.Cell; got one for "
                f"{type(self.cell).__name__}, which draws from rngs of its own. Leave it out."
            )
        x = zeros_of_step(xs)
        return self.cell.with_key(key, x), (xs, first_step + jnp.arange(len(xs)))

    def _scan(self, call: Call, carry: Any, xs: Any) -> tuple[Any, Any]:
        """The cell over time. Keys that all steps share are new ones in each call, as in Flax."""

        @nnx.split_rngs(splits=1, only=self.broadcast_rngs, squeeze=True)
        def scan_cell(cell: Any) -> tuple[Any, Any]:
            shared_keys = nnx.All(nnx.RngState, self.broadcast_rngs)
            return scan_module(
                cell,
                call,
                carry,
                xs,
                state_axes=[(shared_keys, None), *self.state_axes.items()],
                unroll=self.unroll,
                memory=self.memory,
                engine=self.engine,
                truncate=self.truncate,
            )

        return scan_cell(self.cell)
