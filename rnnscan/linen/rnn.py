"""Flax's `nn.RNN`, whose loop is `rnnscan.scan`."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.transforms import lift_transform
from flax.typing import PRNGKey
from jaxtyping import Array, Bool, Integer, Num

from rnnscan._flax.sequence import Steps, cell_name, run_sequence, with_resets
from rnnscan._util.zeros import zeros_of_step
from rnnscan.linen.cell import Cell, as_module
from rnnscan.linen.lifted_scan import lifted_scan
from rnnscan.memory import Memory
from rnnscan.nets.pieces import REVERSED
from rnnscan.newton import Newton
from rnnscan.paths import parts
from rnnscan.scan_runner import around_step
from rnnscan.scanning import scan


class RNN(nn.RNN):
    """Run a cell over time: Flax's `nn.RNN` with a memory choice.

    It replaces `flax.linen.RNN`. Arguments, outputs, carry, parameters, their paths and initial values, variable
    collections and rngs are Flax's. It adds `memory`, `engine`, `truncate` `reset` and the
    method `step`, and it takes cells of rnnscan, which it wraps in a `Cell` in the scope "cell".

    A cell of Flax names no intermediates: the backward pass keeps its inputs and carries and recomputes everything
    else. To keep more, name it in a cell of your own with `rnnscan.name`.

    As in Flax, the cell runs at padded steps too and its outputs there are returned. The carry is the one after the
    last valid step. It differs from Flax:

    - A row of length 0 returns the initial carry. A length above T counts as T.
    - Lengths work with any number of batch axes.
    - Collections in `variable_carry` may be immutable, as in evaluation; then they do not change.
    - The last valid carry is held; the carries of all steps are not kept.

    Args:
        cell: a `flax.linen.RNNCellBase`, or a cell of rnnscan.
        time_major: whether inputs are `(T, *batch, *features)` rather than `(*batch, T, *features)`.
        return_carry: whether to return (carry, outputs) rather than outputs.
        reverse: whether to run from the last valid step to the first. Outputs come in the order of the run.
        keep_order: whether to return the outputs of a reversed run in input order.
        unroll: steps per loop iteration.
        variable_axes: collections with a time axis, and that axis: `{"intermediates": 0}`.
        variable_broadcast: collections that all steps share.
        variable_carry: collections that each step passes to the next.
        split_rngs: for each rng, whether every step gets its own key. The cell does not see rngs left out here.
        memory: what to keep for the backward pass (`rnnscan.Memory`); None: plain autodiff.
        engine: as in `rnnscan.scan`.
        parallel: as in `rnnscan.scan`.
        truncate: stop the gradient through the carry before steps `truncate`, `2 * truncate`, ..., in the order of the
            run; None: never. Padded steps count: a row that ends before the last of these has no gradient of its last
            valid carry.

    Raises:
        TypeError: if `cell` is not a cell of Flax or rnnscan, or returns a carry of another type.
        ValueError: if shapes do not fit, `memory` has a name that the cell lacks, or a collection is misplaced.

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
    parallel: Newton | None = None

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
            inputs: the sequences, `(*batch, T, *features)`, or `(T, *batch, *features)` if time-major.
            initial_carry: the carry to start from; None: the cell's. A leaf without batch axes is shared by the rows.
            init_key: a key for the cell's carry, which most cells ignore; None: `jax.random.key(0)`.
            seq_lengths: `(*batch)` integers: step t of a row is valid if `t < length`. A length above T counts as T. It
                is a scalar for a row without batch axes.
            return_carry: overrides the attribute.
            time_major: overrides the attribute.
            reverse: overrides the attribute. With lengths, padding stays at the end.
            keep_order: overrides the attribute.
            reset: booleans `(*batch, T)`, or `(T, *batch)` if time-major, true at the first step of an episode or
                document, in input order. The carry goes back to `reset_to` before that step; after it in a reversed
                run.
            reset_to: the carry that `reset` goes back to; a leaf may leave out the batch axes. None: the cell's own,
                from `initialize_carry` with `init_key`. `initial_carry` is never used for it, so windows with the
                carry passed on equal the whole sequence.

        Returns:
            The outputs, in the layout of the inputs; with `return_carry` the last carry and the outputs.
        """
        return run_sequence(
            "linen.RNN",
            self.cell,
            inputs,
            self._run,
            initial_carry=initial_carry,
            make_carry=partial(self._make_carry, init_key),
            seq_lengths=seq_lengths,
            reset=reset,
            reset_to=reset_to,
            return_carry=self.return_carry if return_carry is None else return_carry,
            time_major=self.time_major if time_major is None else time_major,
            reverse=self.reverse if reverse is None else reverse,
            keep_order=self.keep_order if keep_order is None else keep_order,
            loop_reverses=True,
        )

    def step(
        self,
        inputs: Num[Array, "*batch_and_features"],
        carry: Any = None,
        *,
        init_key: PRNGKey | None = None,
        reset: Bool[Array, "*batch"] | None = None,
        reset_to: Any = None,
    ) -> tuple[Any, Any]:
        """Run one step, with the parameters of a call: the RNN over a sequence of one.

        Use it for inputs that arrive over time, as an agent that acts gets them. A call over the same steps gives the
        same carry and outputs.

        Args:
            inputs: one step's input, `(*batch, *features)`.
            carry: the carry to start from; None: the cell's. A leaf without batch axes is shared by the rows.
            init_key: as in a call.
            reset: booleans `(*batch)`, true where an episode or document begins at this step.
            reset_to: as in a call.

        Returns:
            The new carry, and the outputs `(*batch, ...)`.

        Raises:
            ValueError: if the RNN runs in reverse, or shapes do not fit.

        Example:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> from flax import linen as nn
            >>> from rnnscan import linen
            >>> model, x = linen.RNN(nn.GRUCell(4)), jnp.ones((2, 3))
            >>> variables = model.init(jax.random.key(0), x, method="step")
            >>> carry, y = model.apply(variables, x, method="step")
            >>> carry, y = model.apply(variables, x, carry, reset=jnp.array([True, False]), method="step")
            >>> y.shape
            (2, 4)
        """
        if self.reverse:
            raise ValueError(f"linen.RNN.step: the RNN must run forward; got reverse=True. {REVERSED}")
        carry, outputs = self(
            jnp.asarray(inputs)[None],
            initial_carry=carry,
            init_key=init_key,
            return_carry=True,
            time_major=True,
            reset=None if reset is None else jnp.asarray(reset)[None],
            reset_to=reset_to,
        )
        return carry, jax.tree.map(lambda leaf: leaf[0], outputs)

    def _make_carry(self, init_key: PRNGKey | None, xs: Array) -> Any:
        if isinstance(self.cell, Cell):
            return self.cell.initial_carry(zeros_of_step(xs))
        return self.cell.initialize_carry(jax.random.key(0) if init_key is None else init_key, xs.shape[1:])

    def _run(self, carry: Any, steps: Steps, reset_to: Any, reverse: bool) -> tuple[Any, Any]:
        split_rngs, call = dict(self.split_rngs), _call
        if isinstance(self.cell, Cell):  # Its random choices depend on the step's number, so one key serves all steps.
            split_rngs.setdefault(self.cell.rng_collection, False)
            steps, call = steps._replace(x=(steps.x, jnp.arange(steps.x.shape[0]))), _call_with_number
        options: dict[str, Any] = {"reverse": reverse, "unroll": self.unroll, "memory": self.memory}
        options |= {"engine": self.engine, "parallel": self.parallel, "truncate": self.truncate}

        def run(step: Any, *arguments: Any) -> tuple[Any, Any]:
            cell = step if self.is_initializing() else around_step(self.cell, step)
            return scan(cell, *arguments, **options)

        loop = lift_transform(
            lifted_scan,
            with_resets(call, reset_to),
            run=run,
            variable_axes=self.variable_axes,
            variable_broadcast=self.variable_broadcast,
            variable_carry=self.variable_carry,
            split_rngs=split_rngs,
            reverse=reverse,
            name=cell_name(self.cell),
        )
        with parts(self.path):
            results: tuple[Any, Any] = loop(self.cell, carry, steps)
        if isinstance(self.cell, Cell) and not self.has_rng(self.cell.rng_collection):
            return self.cell.warned_if_random(results, zeros_of_step(steps.x[0]))
        return results


def _call(cell: nn.Module, carry: Any, x: Any) -> tuple[Any, Any]:
    return cell(carry, x)


def _call_with_number(cell: nn.Module, carry: Any, x: Any) -> tuple[Any, Any]:
    return cell(carry, x[0], step=x[1])
