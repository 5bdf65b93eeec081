"""Two cells over one sequence, in both directions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._checks import check_params
from rnnscan._util import pytrees
from rnnscan._util.arguments import check_key
from rnnscan._util.messages import listing, nearest
from rnnscan.compose.output import extras_of, output_of
from rnnscan.nets.axes import NoArgument, check_positional
from rnnscan.nets.base import Net, Options, check_carries, check_parts, part_of
from rnnscan.nets.layer import Layer
from rnnscan.nets.pieces import BOTH_DIRECTIONS, check_start
from rnnscan.paths import part
from rnnscan.protocols import ComposableCell, check_cell


Merge = Literal["concat", "sum", "mean", "product"] | Callable[[Array, Array], Array]

MERGES: dict[str, Callable[[Array, Array], Array]] = {
    "concat": lambda forward, backward: jnp.concatenate([forward, backward], axis=-1),
    "sum": lambda forward, backward: forward + backward,
    "mean": lambda forward, backward: (forward + backward) / 2,
    "product": lambda forward, backward: forward * backward,
}

_PARTS = ("forward", "backward")


@dataclass(frozen=True)
class Bidirectional(Net):
    """Two cells over one sequence, in both directions. Made by `bidirectional`."""

    forward: ComposableCell
    backward: ComposableCell
    merge: Merge = "concat"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of both cells' intermediates."""
        return tuple(dict.fromkeys((*self.forward.names, *self.backward.names)))

    @property
    def input_axes(self) -> tuple[Any, ...] | None:
        """The spatial axes of one step's input: the forward cell's; None if it has no `input_axes`."""
        return getattr(self.forward, "input_axes", None)

    @property
    def needs_whole(self) -> str:
        """Why the net does not run in pieces: the backward cell starts at the end."""
        return BOTH_DIRECTIONS

    @property
    def output_size(self) -> int:
        """The size of the outputs' last axis."""
        outputs = [jax.ShapeDtypeStruct((cell.output_size,), jnp.float32) for cell in (self.forward, self.backward)]
        return jax.eval_shape(self._merge, *outputs).shape[-1]

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: `{"forward": ..., "backward": ...}`."""
        check_key("bidirectional", key)
        forward_key, backward_key = jax.random.split(key)
        return {
            "forward": self.forward.init(forward_key, input_size),
            "backward": self.backward.init(backward_key, input_size),
        }

    def initial_carry(self, xs: Any) -> tuple[Any, Any]:
        """The cells' carries of zeros for inputs `(T, N, ...)`: (forward, backward)."""
        return Layer(self.forward).initial_carry(xs), Layer(self.backward).initial_carry(xs)

    def __call__(
        self,
        params: Any,
        xs: Any,
        *positional: NoArgument,
        carry: Any = None,
        key: Array | None = None,
        **options: Any,
    ) -> tuple[tuple[Any, Any], Any]:
        """Run both cells over a whole sequence, and merge their outputs.

        Args:
            params: the parameters that `init` made.
            xs: the inputs, time-major, `(T, N, D)`.
            positional: nothing, because the carry is passed by name.
            carry: the initial carries, (forward, backward); None: zeros.
            key: a PRNG key for random choices: training; each direction derives its own. None: evaluation.
            options: as in `Layer`. With lengths the backward cell begins at each row's last valid step.

        Returns:
            The last carries, (forward, backward), and the merged outputs `(T, N, ...)`. If a cell's y is a tuple, as an
            attention decoder's, its first value is merged, and the outputs are a tuple: the merged values, the other
            values of the forward cell, and those of the backward cell.

        Raises:
            TypeError: if the carry is given by its place, or there is no such option.
            TypeError, ValueError: as `scan` does.
            ValueError: if `first_step` is not 0, or the carry comes from the previous training step.
        """
        check_positional("bidirectional", positional)
        settings = Options.of_call("bidirectional", options)
        check_parts("bidirectional", _PARTS, params)
        check_carries("bidirectional", 2, partial(self.initial_carry, xs), carry=carry, reset_to=settings.reset_to)
        check_params(params, function="bidirectional")
        check_start("bidirectional", self, carry, settings.first_step)
        xs = settings.as_sequence("bidirectional", self, xs, carry)
        settings.check_names("bidirectional", self.names)
        settings = settings.planned(self, params, xs, carry, key)
        keys = (None, None) if key is None else jax.random.split(key)
        ran = []
        for number, (direction, cell) in enumerate(zip(_PARTS, (self.forward, self.backward), strict=True)):
            layer, of_part = Layer(cell, reverse=direction == "backward"), settings.of_part(number, cell.names)
            with part(direction):
                ran.append(
                    layer(params[direction], xs, carry=part_of(carry, number), key=keys[number], **vars(of_part))
                )
        (forward_carry, forward_ys), (backward_carry, backward_ys) = ran
        merged = self._merge(output_of(forward_ys), output_of(backward_ys))
        extras = (*extras_of(forward_ys), *extras_of(backward_ys))
        return (forward_carry, backward_carry), (merged, *extras) if extras else merged

    @property
    def scan_names(self) -> tuple[str, ...]:
        """The names of the net's scans, in order."""
        return _PARTS

    def _merge(self, forward: Any, backward: Any) -> Any:
        merge = MERGES[self.merge] if isinstance(self.merge, str) else self.merge
        if self.merge != "concat" and isinstance(self.merge, str) and forward.shape != backward.shape:
            raise ValueError(
                f"bidirectional: merge={self.merge!r} needs outputs of one shape; got {forward.shape} from the forward "
                f'and {backward.shape} from the backward cell. Use merge="concat", or cells of equal size.'
            )
        return merge(forward, backward)


pytrees.register(Bidirectional, "forward", "backward")


def bidirectional(
    forward: ComposableCell, backward: ComposableCell | None = None, *, merge: Merge = "concat"
) -> Bidirectional:
    """Run one cell from the first step to the last and another from the last valid step to the first.

    The net takes an initial carry for both directions, as torch's does. It does not run in pieces, because the backward
    cell starts at the end of the sequence. `rnnscan.truncated`, `rnnscan.nnx.Streaming` and the training step of
    `rnnscan.train` reject it, and `net.runs_in_pieces` is False.

    Args:
        forward: a cell.
        backward: the cell that runs in reverse; None: the same configuration, with its own parameters.
        merge: "concat" along the last axis, forward first; "sum", "mean" or "product"; or a function of both outputs
            `(T, N, ...)`.

    Returns:
        A net.

    Raises:
        ValueError: if `merge` is unknown, or the outputs do not fit it.
        TypeError: if an argument is not a cell.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> net = rs.bidirectional(rs.cells.LSTM(4))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> (forward, backward), ys = net(params, jnp.ones((6, 2, 3)), seq_lengths=jnp.array([6, 4]))
        >>> ys.shape
        (6, 2, 8)

    Source: Schuster and Paliwal 1997, "Bidirectional Recurrent Neural Networks".
    """
    backward = forward if backward is None else backward
    for cell in (forward, backward):
        check_cell("bidirectional", cell)
    if not callable(merge) and merge not in MERGES:
        raise ValueError(
            f"bidirectional: `merge` must be a function or one of {listing(MERGES)}; got {merge!r}."
            f"{nearest(str(merge), MERGES)}"
        )
    return Bidirectional(forward, backward, merge)
