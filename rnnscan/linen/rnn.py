"""Flax's `nn.RNN`, whose loop is `rnnscan.scan`."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.recurrent import flip_sequences
from flax.linen.transforms import lift_transform
from flax.typing import PRNGKey
from jaxtyping import Array, Bool, Integer, Num

from rnnscan._messages import describe, leaves_with_places
from rnnscan._module_carries import carry_to_reset_to, check_reset_to_has_reset, share_by_rows
from rnnscan._step_wrappers import select_rows, valid_steps
from rnnscan._zeros import zeros_of_step
from rnnscan.linen.cell import Cell, as_module
from rnnscan.linen.lifted_scan import lifted_scan
from rnnscan.memory import Memory
from rnnscan.nets.pieces import REVERSED, check_not_handed_on
from rnnscan.scan import scan


class _Steps(NamedTuple):
    """What a step gets beside its carry.

    Attributes:
        x: the inputs.
        number: the number of the step.
        valid: which rows it is valid in, or None where that is all, or not asked for.
        reset: which rows go back to the carry for resets before it, or None.
    """

    x: Any
    number: Any
    valid: Any
    reset: Any


class RNN(nn.RNN):
    """Run a cell over time: Flax's `nn.RNN`, keeping in memory what `memory` says.

    It takes the place of `flax.linen.RNN`: the arguments, the call, outputs and carry, the parameters and their paths,
    the initial values, and what becomes of variable collections and rngs are Flax's. What it adds are `memory`,
    `engine`, `truncate` and `reset`, and cells of rnnscan, which it makes modules of (`Cell`), in its own scope "cell".

    A cell of Flax has no names: between the forward and the backward pass its inputs and carries are kept, and
    everything else is computed again. Name what is to be kept, in a cell of your own, with `rnnscan.name`.

    As in Flax, outputs at padded steps are what the cell makes of the padding, and the carry is that after the last
    valid step. Different from Flax:

    - a row of length 0 returns the initial carry, and not that after the last padded step; one of a length above T
      gets the gradient of its carry;
    - with several batch dimensions the carry is that of each row too;
    - collections in `variable_carry` may be immutable, as in evaluation, and are then not changed;
    - the same carries are returned without keeping those of all steps.

    Args:
        cell: a `flax.linen.RNNCellBase`, or a cell of rnnscan.
        time_major: whether inputs are `(T, *batch, *features)`, and not `(*batch, T, *features)`.
        return_carry: whether to return (carry, outputs), and not outputs alone.
        reverse: whether to run from the last valid step to the first. Outputs are in the order of the run.
        keep_order: whether to return the outputs of a reversed run in the order of the inputs.
        unroll: steps a trip of the loop.
        variable_axes: collections that have an axis of time, and which: `{"intermediates": 0}`.
        variable_broadcast: collections that all steps share.
        variable_carry: collections that each step hands on to the next.
        split_rngs: for each rng whether every step has a key of its own. The cell does not see what is not named here.
        memory: what to keep between the forward and the backward pass; None: plain autodiff (`rnnscan.Memory`).
        engine: as in `rnnscan.scan`.
        truncate: no gradient flows through the carry into steps `truncate`, `2 * truncate`, ..., in the order of the
            run; None: it flows everywhere.

    Raises:
        TypeError: if the cell is neither of Flax nor of rnnscan, or the carry is not of the type that it returns.
        ValueError: if a shape does not fit, `memory` names what the cell does not, or a collection is in the wrong
            place.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from flax import linen as nn
        >>> import rnnscan as rs
        >>> from rnnscan import linen
        >>> inputs = jnp.ones((2, 5, 3))  # two rows, five steps, three features
        >>> model = linen.RNN(nn.LSTMCell(4), return_carry=True)  # instead of nn.RNN
        >>> variables = model.init(jax.random.key(0), inputs)
        >>> (state, hidden), outputs = model.apply(variables, inputs, seq_lengths=jnp.array([5, 3]))
        >>> state.shape, hidden.shape, outputs.shape
        ((2, 4), (2, 4), (2, 5, 4))
        >>> model = linen.RNN(rs.cells.LSTM(4), memory=rs.Memory(recompute=("gates",)))
        >>> model.init_with_output(jax.random.key(0), inputs)[0].shape
        (2, 5, 4)
    """

    cell: Any
    memory: Memory | None = Memory()
    engine: Literal["auto", "fission", "lax"] = "auto"
    truncate: int | None = None

    def __post_init__(self) -> None:
        self.cell = as_module(self.cell)
        super().__post_init__()

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
        """Run the cell over the inputs.

        Args:
            inputs: the sequences, `(*batch, T, *features)`, or `(T, *batch, *features)` where time-major.
            initial_carry: the carry to start from; None: the cell's. A leaf may leave out the batch axes: its rows
                share it.
            init_key: a key for the cell's carry, which most cells do not use; None: `jax.random.key(0)`.
            seq_lengths: `(*batch)` integers: step t of a row is valid where `t < length`. One above T
                counts as T. One row without a batch axis has a scalar.
            return_carry: instead of the attribute.
            time_major: instead of the attribute.
            reverse: instead of the attribute. With lengths, padding stays at the end.
            keep_order: instead of the attribute.
            reset: booleans `(*batch, T)`, or `(T, *batch)` where time-major, true at the first step of an episode or
                document, in the order of the inputs: there the carry goes back to `reset_to`, before that step, or
                after it in a reversed run.
            reset_to: the carry that `reset` goes back to, like the initial one; a leaf may leave out the batch axes.
                None: the cell's own, by `initialize_carry` with `init_key`. It is never the carry that was passed in:
                windows, each from the carry of the one before, equal the whole.

        Returns:
            The outputs, in the layout of the inputs; with `return_carry` the last carry and the outputs.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order

        axes = self.cell.num_feature_axes
        _check_inputs(inputs, axes)
        time_axis = 0 if time_major else inputs.ndim - axes - 1
        xs = jnp.moveaxis(inputs, time_axis, 0)
        length, *batch = xs.shape[:-axes]
        check_reset_to_has_reset("linen.RNN", reset_to, reset)
        _check_rows(seq_lengths, reset, tuple(batch), length, time_major)
        if reset is not None:
            reset = jnp.moveaxis(reset, time_axis, 0)
            if reverse:  # What ends before step t is begun, in reverse, at step t - 1.
                reset = jnp.concatenate([reset[1:], jnp.zeros_like(reset[:1])])

        def flip(leaf: Array) -> Array:
            return flip_sequences(leaf, seq_lengths, num_batch_dims=len(batch), time_major=True)

        # Without lengths the loop itself runs in reverse, and copies nothing.
        flips, runs_back = reverse and seq_lengths is not None, reverse and seq_lengths is None
        if flips:
            xs, reset = jax.tree.map(flip, (xs, reset))
        holds = return_carry and seq_lengths is not None
        valid = valid_steps(jnp.asarray(seq_lengths), length) if holds else None
        steps = _Steps(xs, jnp.arange(length), valid=valid, reset=reset)
        if reverse:
            check_not_handed_on("linen.RNN", initial_carry, REVERSED)
        rows = tuple(batch)
        own = cache(partial(self._own_carry, init_key, xs))
        carry = self._start(own) if initial_carry is None else share_by_rows(initial_carry, rows, own)
        if reset is not None:
            reset_to = carry_to_reset_to("linen.RNN", self.cell, reset_to, carry, rows, own)
        carry, outputs = self._run(carry, steps, runs_back, reset_to)
        if flips and keep_order:
            outputs = jax.tree.map(flip, outputs)
        if runs_back and not keep_order:
            outputs = jax.tree.map(lambda leaf: leaf[::-1], outputs)
        outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, time_axis), outputs)
        return (carry, outputs) if return_carry else outputs

    def _own_carry(self, init_key: PRNGKey | None, xs: Array) -> Any:
        if isinstance(self.cell, Cell):
            return self.cell.initial_carry(zeros_of_step(xs))
        return self.cell.initialize_carry(jax.random.key(0) if init_key is None else init_key, xs.shape[1:])

    def _start(self, own: Callable[[], Any]) -> Any:
        try:
            return own()
        except NotImplementedError as error:
            raise TypeError(
                "linen.RNN: there must be a carry to start from; got no `initial_carry`, and "
                f"{type(self.cell).__name__} has no `initialize_carry`. Give one of the two."
            ) from error

    def _run(self, carry: Any, steps: _Steps, reverse: bool, reset_to: Any) -> tuple[Any, Any]:
        """Run the steps, time-major; returned are the carry after each row's last valid step, and the outputs."""
        _check_carry(carry, steps)
        split_rngs = dict(self.split_rngs)
        if isinstance(self.cell, Cell):  # Its choices depend on the number of the step, so one key does for all.
            split_rngs.setdefault(self.cell.rng_collection, False)
        run = partial(
            scan, reverse=reverse, unroll=self.unroll, memory=self.memory, engine=self.engine, truncate=self.truncate
        )
        loop = lift_transform(
            lifted_scan,
            _step_with_resets(reset_to),
            run=run,
            variable_axes=self.variable_axes,
            variable_broadcast=self.variable_broadcast,
            variable_carry=self.variable_carry,
            split_rngs=split_rngs,
            reverse=reverse,
        )
        (carry, last_valid), outputs = loop(self.cell, (carry, None if steps.valid is None else carry), steps)
        return carry if steps.valid is None else last_valid, outputs


def _step_with_resets(reset_to: Any) -> Callable[[nn.Module, Any, _Steps], tuple[Any, Any]]:
    """A step of a module, with the carry after each row's last valid step beside its own."""

    def step(cell: nn.Module, carries: Any, given: _Steps) -> tuple[Any, Any]:
        carry, last_valid = carries
        if given.reset is not None:
            carry = select_rows(given.reset, reset_to, carry)
        numbered: Mapping[str, Any] = {"step": given.number} if isinstance(cell, Cell) else {}
        carry, y = cell(carry, given.x, **numbered)
        if given.valid is not None:
            last_valid = select_rows(given.valid, carry, last_valid)
        return (carry, last_valid), y

    return step


def _check_inputs(inputs: Any, feature_axes: int) -> None:
    if not hasattr(inputs, "shape") or inputs.ndim < feature_axes + 1:
        raise ValueError(
            f"linen.RNN: `inputs` must have an axis of time and {feature_axes} of features, and any of batch; got "
            f"{describe(inputs)}."
        )


def _check_rows(seq_lengths: Any, reset: Any, batch: tuple[int, ...], length: int, time_major: bool) -> None:
    if seq_lengths is not None and not _is(seq_lengths, jnp.integer, batch):
        raise ValueError(
            f"linen.RNN: `seq_lengths` must be integers of the batch's shape {batch}, one length a row; got "
            f"{describe(seq_lengths)}. Write seq_lengths.astype(int) for whole numbers of another dtype."
        )
    expected = (length, *batch) if time_major else (*batch, length)
    if reset is not None and not _is(reset, jnp.bool_, expected):
        raise ValueError(
            f"linen.RNN: `reset` must be bool[{','.join(map(str, expected))}], as the inputs are laid out with "
            f"time_major={time_major}; got {describe(reset)}. Write reset != 0 for one of numbers."
        )


def _is(value: Any, kind: Any, shape: tuple[int, ...]) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, kind) and value.shape == shape


def _check_carry(carry: Any, steps: _Steps) -> None:
    rows = steps.valid if steps.reset is None else steps.reset
    if rows is None:
        return
    batch = rows.shape[1:]
    for where, leaf in leaves_with_places(carry, "carry"):
        if jnp.shape(leaf)[: len(batch)] != batch:
            raise ValueError(
                f"linen.RNN: `seq_lengths` and `reset` speak of rows {batch}, so the first axes of {where} must be "
                f"these; got {describe(leaf)}. Give an `initial_carry` with a row for each sequence."
            )
