"""A cell run over a sequence."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Array, Bool, Integer

from rnnscan._checks import check_params, check_reverse
from rnnscan._util import pytrees
from rnnscan._util.step_wrappers import Padding, reverse_reset
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.axes import NoArgument, as_sequence, check_positional
from rnnscan.nets.base import Net, one_step, reject_unknown
from rnnscan.nets.pieces import REVERSED, check_start
from rnnscan.newton import Newton
from rnnscan.protocols import ComposableCell, check_cell
from rnnscan.scanning import scan


@dataclass(frozen=True)
class Layer(Net):
    """A cell run over a sequence. Made by `layer`."""

    cell: ComposableCell
    reverse: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cell's intermediates."""
        return self.cell.names

    @property
    def input_axes(self) -> tuple[Any, ...] | None:
        """The spatial axes of one step's input: the cell's; None if it has no `input_axes`."""
        return getattr(self.cell, "input_axes", None)

    @property
    def needs_whole(self) -> str | None:
        """Why a reversed layer does not run in pieces; None for a forward one."""
        return REVERSED if self.reverse else None

    @property
    def output_size(self) -> int:
        """The size of the outputs' last axis."""
        return self.cell.output_size

    def init(self, key: Array, input_size: int) -> Any:
        """Make parameters: those of the cell."""
        return self.cell.init(key, input_size)

    def initial_carry(self, xs: Any) -> Any:
        """The cell's carry of zeros, for inputs `(T, N, ...)`, or `(T, ...)` for one row."""
        return self.cell.initial_carry(one_step(xs))

    def __call__(
        self,
        params: Any,
        xs: Any,
        *positional: NoArgument,
        carry: Any = None,
        key: Array | None = None,
        first_step: Any = 0,
        seq_lengths: Integer[Array, "*batch"] | None = None,
        mask: Bool[Array, " time *batch"] | None = None,
        reset: Bool[Array, " time *batch"] | None = None,
        reset_to: Any = None,
        padding: Padding = "zero",
        truncate: int | None = None,
        memory: Memory | MemoryBudget | None = Memory(),
        engine: Literal["auto", "fission", "lax"] = "auto",
        parallel: Newton | None = None,
        **unknown: NoArgument,
    ) -> tuple[Any, Any]:
        """Run the cell over a sequence.

        Args:
            params: the parameters that `init` made.
            xs: the inputs, time-major, `(T, N, D)`. `(T, D)` is one row, if the carry, lengths, mask or resets have no
                batch axis; otherwise it is an error, because it may be one step, which `step` runs.
            positional: nothing, because the carry is passed by name.
            carry: the initial carry; None: the cell's `initial_carry`. A leaf `(H,)` is shared by the rows.
            key: a PRNG key for dropout and other random choices: training. None: evaluation, without random choices.
            first_step: the number of the first step, which random choices depend on. Pass the steps done so far to run
                a sequence in pieces with one key. It must be 0 for a net that needs the whole sequence.
            seq_lengths: `(N,)` integers: step t of row n is valid if `t < seq_lengths[n]`. It is a scalar for one row
                `(T, D)`, whose `mask` and `reset` are `(T,)`.
            mask: `(T, N)` booleans, true at valid steps; instead of `seq_lengths`.
            reset: `(T, N)` booleans, true at the first step of an episode or document, in time order. The carry goes
                back to `reset_to` before that step; after it in a reversed net.
            reset_to: the carry that `reset` goes back to, with the structure of the net's carry; None: the cell's own
                `initial_carry`, as in `scan`.
            padding: the values at padded steps, as in `scan`.
            truncate: stop the gradient through the carry at every `truncate`-th step, as in `scan`.
            memory: what to keep for the backward pass (`Memory`), or a budget for the whole net (`Memory.fit`); None:
                plain autodiff.
            engine: as in `scan`.
            parallel: as in `scan`.
            unknown: nothing, because these are all options.

        Returns:
            The last carry, and the outputs `(T, N, P)`.

        Raises:
            TypeError: if the carry is given by its place, `xs` is not an array, or there is no such option.
            ValueError: if `xs` has no time axis, or may have none.
            TypeError, ValueError: as `scan` does.
        """
        check_positional("layer", positional)
        reject_unknown("layer", unknown)
        check_start("layer", self, carry, first_step)
        check_params(params, function="layer")
        xs = as_sequence("layer", self, xs, carry, (seq_lengths, 0), (mask, 1), (reset, 1))
        carry = self.initial_carry(xs) if carry is None else carry
        if reset is not None and self.reverse:
            reset = reverse_reset(reset)
        return scan(
            self.cell,
            params,
            carry,
            xs,
            key=key,
            first_step=first_step,
            reverse=self.reverse,
            seq_lengths=seq_lengths,
            mask=mask,
            reset=reset,
            reset_to=reset_to,
            padding=padding,
            truncate=truncate,
            memory=memory,
            engine=engine,
            parallel=parallel,
        )

    @property
    def scan_names(self) -> tuple[str, ...]:
        """The names of the net's scans: one, without a name."""
        return ("",)


pytrees.register(Layer, "cell")


def layer(cell: ComposableCell, *, reverse: bool = False) -> Layer:
    """Make a net of a cell: the cell run over a sequence.

    Args:
        cell: a cell, such as those of `rnnscan.cells`, or a stack of them.
        reverse: whether to run from the last valid step to the first. Outputs stay in input order. Such a net does not
            run in pieces (`net.runs_in_pieces`).

    Returns:
        A net: `net.init(key, input_size)` makes parameters, `net(params, xs)` returns the last carry and the outputs.

    Raises:
        TypeError: if `cell` is not a cell, or `reverse` is not a bool.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> net = rs.layer(rs.dropout(rs.cells.GRU(4), rate=0.1))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> xs = jnp.ones((6, 2, 3))
        >>> (hidden,), ys = net(params, xs, key=jax.random.key(1), seq_lengths=jnp.array([6, 4]))
        >>> hidden.shape, ys.shape
        ((2, 4), (6, 2, 4))
    """
    check_cell("layer", cell)
    check_reverse("layer", reverse)
    return Layer(cell, reverse)
