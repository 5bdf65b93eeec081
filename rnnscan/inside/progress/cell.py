"""progress(): a cell whose scan moves a progress bar."""

from dataclasses import dataclass
from typing import Any

from rnnscan._util import pytrees
from rnnscan._util.messages import describe, is_count
from rnnscan.inside.progress.bar import Bar, check_tqdm
from rnnscan.inside.progress.moves import Moves
from rnnscan.inside.progress.windows import Windows, scan_in_windows


@dataclass(frozen=True)
class Progress:
    """A cell whose scan moves a progress bar. Made by `progress`. All else is the inner cell's.

    Attributes:
        cell: the inner cell.
        total: the steps of a whole bar; None: those of the scan.
        every: the steps between two moves; None: about a twentieth of the scan.
        forward: the bar of the forward pass.
        backward: the bar of the backward pass.
    """

    cell: Any
    total: int | None
    every: int | None
    forward: Bar
    backward: Bar

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step, without a bar: `(params, carry, x) -> (carry, y)`."""
        result: tuple[Any, Any] = self.cell(params, carry, x)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "cell":
            raise AttributeError(name)
        return getattr(self.cell, name)

    def run_scan(self, params: Any, carry: Any, xs: Any, steps: int, options: dict[str, Any]) -> tuple[Any, Any]:
        """Run the scan of the inner cell, and move the bars.

        Args:
            params: the cell's parameters.
            carry: the carry before the first step.
            xs: the inputs, as arrays.
            steps: the number of steps.
            options: all other arguments of `scan`.
        """
        windows = Windows.of(steps, self.every, reverse=options["reverse"], truncate=options["truncate"])
        moves = Moves(self.forward, self.backward, steps, self.total or steps)
        return scan_in_windows(self.cell, params, carry, xs, options, windows, moves)


pytrees.register(Progress, "cell")


def progress(cell: Any, *, total: int | None = None, every: int | None = None, label: str = "scan") -> Progress:
    """Show a progress bar while a long scan of a cell runs, within `jax.jit` too.

    The scan runs in windows, and each moves a bar of tqdm when it is done. The backward pass has a bar of its own.
    Results and gradients are the same to rounding, in every transformation. Under `vmap` the rows share one bar, which
    moves with the first. An exported program has no bar.

    Args:
        cell: any cell, or a function `cell(params, carry, x) -> (carry, y)`. Put it around the whole cell, within a
            net too: `rs.layer(rs.progress(cell))`. A cell within another, as in `rs.stack`, moves no bar.
        total: the steps of a whole bar, where several scans, such as windows of a long sequence, share one. None: the
            steps of the scan.
        every: the number of steps after which the bar moves. None: about a twentieth of the scan. With `truncate`, the
            next multiple of it. A memory choice with segments holds for each such window.
        label: the text before the bar. That of the backward pass is followed by ", backward".

    Returns:
        A cell with the inner cell's parameters, carry and names.

    Raises:
        TypeError: if the cell cannot be called.
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
    if not callable(cell):
        raise TypeError(
            f"progress: the cell must be a function cell(params, carry, x) -> (carry, y); got {describe(cell)}."
        )
    for argument, value in (("total", total), ("every", every)):
        if value is not None and not is_count(value, least=1):
            raise ValueError(f"progress: `{argument}` must be a positive number of steps, or None; got {value!r}.")
    check_tqdm()
    return Progress(cell, total, every, Bar(label), Bar(f"{label}, backward"))
