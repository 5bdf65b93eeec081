"""`flax.nnx.RNN`, run by rnnscan."""

from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Integer

from rnnscan._checks import check_options, check_parallel
from rnnscan._flax.sequence import Call, Steps, run_sequence, with_resets
from rnnscan._util.messages import describe_value
from rnnscan._util.zeros import zeros_of_step
from rnnscan.memory import Memory
from rnnscan.nets.axes import NoArgument
from rnnscan.newton import Newton
from rnnscan.nnx.cell import Cell
from rnnscan.nnx.checks import check_by_name, check_flax_cell, check_state_axes
from rnnscan.nnx.initial_carry import make_carry
from rnnscan.nnx.module_scan import scan_module
from rnnscan.protocols import InitializableCell, check_cell


class RNN(nnx.RNN):
    """Run a cell over time: Flax's `nnx.RNN` with a memory choice.

    It replaces `flax.nnx.RNN`: same arguments, results and state, so checkpoints are interchangeable. The cell is one
    of `flax.nnx`, one of your own that derives from `nnx.RNNCellBase`, or a `Cell`.

    The backward pass keeps inputs, carries and the values that the cell names with `rnnscan.name`, and recomputes
    everything else. Flax's own cells name nothing.

    As in Flax, the cell runs at padded steps too: their outputs are returned, and a cell's state, such as the
    statistics of `nnx.BatchNorm`, includes them. It differs from Flax:

    - A carry that does not depend on a key, such as zeros, draws none. So a call changes no stream of keys,
      `rngs=False` works, and so do `jax.grad`, `jax.jit` over a closure and `nnx.merge` within them, where Flax raises
      a `TraceContextError`. A random carry is drawn as Flax draws it.
    - A row of length 0 returns the initial carry. A length above T counts as T. Lengths work with any number of batch
      axes.
    - The last valid carry is held; the carries of all steps are not kept.

    Args:
        cell: the cell: a module of `flax.nnx`, or a cell of rnnscan, which becomes an `rnnscan.nnx.Cell`.
        positional: nothing, because the options are passed by name.
        in_features: D, the size of the input's last axis: needed for a cell of rnnscan, whose parameters `rngs` draws.
        time_major: whether inputs and outputs are `(T, *batch, ...)` rather than `(*batch, T, ...)`.
        return_carry: whether to return (carry, outputs) rather than outputs. With `seq_lengths` the carry is the one
            after each row's last valid step.
        reverse: whether to run from the last valid step to the first. Outputs come in the order of the run.
        keep_order: whether to return the outputs of a reversed run in input order.
        unroll: steps per loop iteration.
        state_axes: by a filter of the cell's variables: `nnx.Carry` if each step passes them to the next; None if all
            steps get the same values and their changes are dropped; or the axis along which each step has its own.
            None: all are carried.
        broadcast_rngs: a filter of the key streams whose count is the same at every step, so that `nnx.Dropout` drops
            the same units at all steps of a call.
        rngs: forks the stream "carry" of these for random initial carries; True: makes its own; False: none.
        memory: what to keep for the backward pass (`rnnscan.Memory`); None: plain autodiff.
        engine: as in `rnnscan.scan`.
        parallel: as in `rnnscan.scan`.
        truncate: stop the gradient through the carry before steps `truncate`, `2 * truncate`, ..., in the order of the
            run; None: never. Padded steps count: a row that ends before the last of these has no gradient of its last
            valid carry.

    Raises:
        TypeError: if `cell` is not a cell, or another argument has a wrong type.
        ValueError: if an argument has a wrong value.

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
        >>> jax.grad(lambda inputs: rnn(inputs).sum())(inputs).shape  # flax.nnx.RNN: TraceContextError
        (2, 5, 3)
        >>> RNN(rs.cells.GRU(4), in_features=3, rngs=nnx.Rngs(0))(inputs).shape
        (2, 5, 4)
    """

    def __init__(
        self,
        cell: Any,
        *positional: NoArgument,
        in_features: int | None = None,
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
        parallel: Newton | None = None,
        truncate: int | None = None,
    ) -> None:
        check_by_name("nnx.RNN", positional)
        cell = _as_module(cell, in_features, rngs)
        check_options(memory=memory, unroll=unroll, truncate=truncate, padding="zero", engine=engine)
        check_parallel(parallel, memory)
        state_axes = {...: nnx.Carry} if state_axes is None else state_axes
        check_state_axes("nnx.RNN", state_axes)
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
        self.parallel = parallel
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
            inputs: the sequences, `(*batch, T, *features)`, or `(T, *batch, *features)` if time-major.
            initial_carry: the carry to start from; None: the cell's. A leaf without batch axes is shared by the rows.
            seq_lengths: `(*batch)` integers: step t of a row is valid if `t < length`. A length above T counts as T.
            return_carry: overrides the attribute.
            time_major: overrides the attribute.
            reverse: overrides the attribute. With lengths, padding stays at the end.
            keep_order: overrides the attribute.
            rngs: gives keys for a random initial carry; None: the module's own stream.
            reset: booleans of the shape of the inputs without features, true at the first step of an episode or
                document, in input order. The carry goes back to `reset_to` before that step; after it in a reversed
                run.
            reset_to: the carry that `reset` goes back to; a leaf may leave out the batch axes. None: the cell's own,
                from `initialize_carry`. `initial_carry` is never used for it, so windows with the carry passed on
                equal the whole sequence.
            key: a PRNG key for the random choices of a `Cell`, such as `rnnscan.dropout`: training. None: evaluation,
                without random choices, whatever the `rngs`; a gradient warns. Other modules use their own `rngs`.
            first_step: the number of the first step, which random choices depend on. Pass the steps done so far to run
                a sequence in pieces with one key.

        Returns:
            The outputs, `(*batch, T, ...)` or `(T, *batch, ...)`; with `return_carry` the carry, and the outputs.

        Raises:
            ValueError: if shapes do not fit, or `memory` has a name that the cell lacks.
            TypeError: if the cell does not take `key`, or as `rnnscan.scan` does.
        """
        rngs = self.rngs if rngs is None else rngs

        def run(carry: Any, steps: Steps, reset_to: Any, _: bool) -> tuple[Any, Any]:
            call, x = self._make_call(steps.x, key, first_step)
            results = self._scan(with_resets(call, reset_to), carry, steps._replace(x=x))
            if key is None and isinstance(self.cell, Cell):
                return self.cell.warned_if_random(results, zeros_of_step(steps.x))
            return results

        return run_sequence(
            "nnx.RNN",
            self.cell,
            inputs,
            run,
            initial_carry=initial_carry,
            make_carry=lambda xs: make_carry(self.cell, zeros_of_step(xs), rngs),
            make_carry_shapes=lambda xs: make_carry(self.cell, zeros_of_step(xs), nnx.Rngs(0)),  # Draws no key of ours.
            seq_lengths=seq_lengths,
            reset=reset,
            reset_to=reset_to,
            return_carry=self.return_carry if return_carry is None else return_carry,
            time_major=self.time_major if time_major is None else time_major,
            reverse=self.reverse if reverse is None else reverse,
            keep_order=self.keep_order if keep_order is None else keep_order,
            loop_reverses=False,
        )

    def _make_call(self, xs: Array, key: Array | None, first_step: Any) -> tuple[Call, Any]:
        """One step of the cell, and its scanned inputs."""
        if key is None:
            return lambda cell, carry, x: cell(carry, x), xs
        if not isinstance(self.cell, Cell):
            raise TypeError(
                f"nnx.RNN: `key` is for the random choices of a rnnscan.nnx.Cell; got one for "
                f"{type(self.cell).__name__}, which draws from its own rngs. Leave it out."
            )
        return self.cell.with_key(key, zeros_of_step(xs)), (xs, first_step + jnp.arange(xs.shape[0]))

    def _scan(self, call: Call, carry: Any, xs: Any) -> tuple[Any, Any]:
        @nnx.split_rngs(splits=1, only=self.broadcast_rngs, squeeze=True)  # As in Flax, new shared keys for each call.
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
                parallel=self.parallel,
                truncate=self.truncate,
            )

        return scan_cell(self.cell)


def _as_module(cell: Any, in_features: int | None, rngs: Any) -> nnx.Module:
    """A cell of Flax itself; one of rnnscan as a module, with parameters of its own."""
    if isinstance(cell, nnx.Module):
        check_flax_cell("nnx.RNN", cell)
        if in_features is not None:
            raise TypeError(
                f"nnx.RNN: `in_features` is for a cell of rnnscan; got in_features={in_features!r} and the module "
                f"{type(cell).__name__}, which has its size. Leave it out."
            )
        return cell
    check_cell("nnx.RNN", cell, InitializableCell)
    if in_features is None or not isinstance(rngs, nnx.Rngs):
        size = "no `in_features`" if in_features is None else f"in_features={in_features!r}"
        # True is the default, which is for random initial carries.
        keys = "an nnx.Rngs" if isinstance(rngs, nnx.Rngs) else "no `rngs`" if rngs is True else describe_value(rngs)
        raise TypeError(
            f"nnx.RNN: a cell of rnnscan needs `in_features` and `rngs`, for its parameters; got {size} and {keys}. "
            "Write RNN(cell, in_features=inputs.shape[-1], rngs=nnx.Rngs(0))."
        )
    return Cell(cell, in_features, rngs=rngs)
