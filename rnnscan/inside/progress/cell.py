"""progress(): a cell whose scan moves a progress bar."""

from dataclasses import dataclass, field, replace
from typing import Any

from rnnscan._util import pytrees
from rnnscan._util.messages import is_count
from rnnscan.inside.progress.bar import Bar, check_tqdm
from rnnscan.inside.progress.lengths import window_and_period
from rnnscan.inside.progress.moves import Moves
from rnnscan.inside.progress.windows import Windows, scan_in_windows
from rnnscan.protocols import Cell, check_cell
from rnnscan.scanning import scan


@dataclass(frozen=True)
class Progress:
    """A cell whose scan moves a progress bar. Made by `progress`. All else is the inner cell's.

    Attributes:
        cell: the inner cell.
        total: the steps of a whole bar; None: those of the scan.
        every: the steps between two moves; None: chosen.
        forward: the bar of the forward pass.
        backward: the bar of the backward pass.
    """

    cell: Any
    total: int | None
    every: int | None
    forward: Bar = field(repr=False)
    backward: Bar = field(repr=False)

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step, without a bar: `(params, carry, x) -> (carry, y)`."""
        result: tuple[Any, Any] = self.cell(params, carry, x)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "cell":
            raise AttributeError(name)
        return getattr(self.cell, name)

    def around(self, cell: Any) -> "Progress":
        """The same bars around another cell.

        Args:
            cell: the cell.
        """
        return replace(self, cell=cell)

    def run_scan(self, params: Any, carry: Any, xs: Any, steps: int, options: dict[str, Any]) -> tuple[Any, Any]:
        """Run the scan of the inner cell, and move the bars.

        Args:
            params: the cell's parameters.
            carry: the carry before the first step.
            xs: the inputs, as arrays.
            steps: the number of steps.
            options: all other arguments of `scan`.
        """
        if steps == 1 and self.total is None:  # A step of a stream.
            results: tuple[Any, Any] = scan(self.cell, params, carry, xs, length=1, **options)
            return results
        length, period, memory = window_and_period(self.cell, params, carry, xs, steps, self.every, options)
        windows = Windows.of(steps, length, reverse=options["reverse"])
        moves = Moves(self.forward, self.backward, steps, self.total or steps, period)
        return scan_in_windows(self.cell, params, carry, xs, {**options, "memory": memory}, windows, moves)


pytrees.register(Progress, "cell")


def progress(cell: Any, *, total: int | None = None, every: int | None = None, label: str = "scan") -> Progress:
    """Show a progress bar while a long scan of a cell runs, within `jax.jit` too.

    The scan runs in windows, and some of them move a bar of tqdm when they are done. The backward pass has a bar of its
    own. Results and gradients are the same to rounding, in every transformation. Under `vmap` the rows share one bar,
    which moves with the first. A program with a bar has callbacks, and is not exported: export the inner cell.

    Args:
        cell: any cell, or a function `cell(params, carry, x) -> (carry, y)`. In a net it is around a cell,
            `rs.layer(rs.progress(cell))`, and so in `rs.linen.RNN` and `rs.nnx.RNN`. Around a cell within another, as
            in `rs.dropout` or `rs.stack`, it shows the whole scan; of several, the first does. A class of your own that
            holds it must be a pytree. The loops of Flax's own RNNs move no bar, nor does a scan of one step.
        total: the steps of a whole bar, where several scans, such as windows of a long sequence, share one. None: the
            steps of the scan.
        every: the number of steps after which the bar moves. None: about a twentieth of the scan; fewer moves on a CPU,
            down to one, where that would cost more than about 2 % of the time. With `truncate`, the next multiple of
            it. A memory choice with segments holds for each window, of about a twentieth of the scan or `every` steps.
        label: the text before the bar. That of the backward pass is followed by ", backward".

    Returns:
        A cell with the inner cell's parameters, carry and names.

    Raises:
        TypeError: if the cell is no cell, such as a net, a class or a module of Flax, or `label` is no text.
        ValueError: if `total` or `every` is no positive integer.
        ImportError: without tqdm, which the extra `train` installs.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.GRU(4), jnp.ones((1000, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> shown = rs.progress(cell, every=250)
        >>> carry, ys = jax.jit(lambda params: rs.scan(shown, params, cell.initial_carry(xs[0]), xs))(params)
        >>> ys.shape
        (1000, 2, 4)
    """
    check_cell("progress", cell, Cell)
    if not isinstance(label, str):
        raise TypeError(f"progress: `label` must be a text, shown before the bar; got {label!r}.")
    for argument, value in (("total", total), ("every", every)):
        if value is not None and not is_count(value, least=1):
            raise ValueError(f"progress: `{argument}` must be a positive number of steps, or None; got {value!r}.")
    check_tqdm()
    return Progress(cell, total, every, Bar(label), Bar(f"{label}, backward"))
