"""A scan in windows, which equals the whole."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan import _checks as checks
from rnnscan._util.step_wrappers import hold_last_valid
from rnnscan.inside.progress.moves import Moves
from rnnscan.scanning import scan


@dataclass(frozen=True)
class Windows:
    """The windows of a scan: those of one length, and after them, in running order, the rest.

    Attributes:
        length: the steps of a window.
        count: the number of windows of this length.
        rest: the steps of the last one, fewer than a window's.
        reverse: whether the scan runs from the last step to the first.
    """

    length: int
    count: int
    rest: int
    reverse: bool

    @classmethod
    def of(cls, steps: int, length: int, *, reverse: bool) -> "Windows":
        """The windows of a length in a number of steps."""
        return cls(length, steps // length, steps % length, reverse)

    def split(self, tree: Any) -> tuple[Any, Any]:
        """Leaves `(T, ...)` as those of whole windows, `(count, length, ...)`, and those of the rest."""
        start = self.rest if self.reverse else 0
        whole = jax.tree.map(
            lambda leaf: leaf[start : start + self.count * self.length].reshape(
                self.count, self.length, *leaf.shape[1:]
            ),
            tree,
        )
        rest = slice(0, self.rest) if self.reverse else slice(self.count * self.length, None)
        return whole, jax.tree.map(lambda leaf: leaf[rest], tree)

    def joined(self, whole: Any, rest: Any) -> Any:
        """The leaves `(T, ...)` of what `split` splits. `rest`: None if there is none."""
        whole = jax.tree.map(lambda leaf: leaf.reshape(self.count * self.length, *leaf.shape[2:]), whole)
        if rest is None:
            return whole
        pair = (rest, whole) if self.reverse else (whole, rest)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pair)


def scan_in_windows(
    cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any], windows: Windows, moves: Moves
) -> tuple[Any, Any]:
    """A scan in windows, which move bars.

    Args:
        cell: the cell.
        params: its parameters.
        carry: the carry before the first step.
        xs: the inputs, as arrays.
        options: all other arguments of `scan`.
        windows: the windows.
        moves: the bars.
    """
    valid = checks.validity(options.pop("seq_lengths"), options.pop("mask"), moves.steps)
    resets = checks.resets(options.pop("reset"), moves.steps)
    holds = options["padding"] == "hold" and valid is not None
    options = {**options, "padding": "zero" if holds else options["padding"]}
    whole, rest = windows.split({"xs": xs, "mask": valid, "reset": resets})
    run = _Run(cell, params, options, windows, moves)
    carry = run.broadcast(carry, jax.tree.map(lambda leaf: leaf[0], whole))
    carry, ys = lax.scan(
        run.window, carry, (whole, jnp.arange(windows.count, dtype=jnp.int32)), reverse=windows.reverse
    )
    carry, ys_of_rest = run.rest(carry, rest) if windows.rest else (carry, None)
    ys = windows.joined(ys, ys_of_rest)
    return carry, hold_last_valid(ys, valid, reverse=windows.reverse) if holds else ys


@dataclass(frozen=True)
class _Run:
    """Runs windows of a scan."""

    cell: Any
    params: Any
    options: dict[str, Any]
    windows: Windows
    moves: Moves

    def window(self, carry: Any, scanned: Any) -> tuple[Any, Any]:
        """One of the whole windows."""
        arrays, number = scanned
        windows, length = self.windows, self.windows.length
        earlier = windows.count - 1 - number if windows.reverse else number
        start = number * length + (windows.rest if windows.reverse else 0)
        return self._run(carry, arrays, start, length, done=earlier * length)

    def rest(self, carry: Any, arrays: Any) -> tuple[Any, Any]:
        """The steps after the whole windows."""
        done = self.windows.count * self.windows.length
        start = 0 if self.windows.reverse else done
        return self._run(carry, arrays, start, self.windows.rest, done=jnp.int32(done))

    def _run(self, carry: Any, arrays: Any, start: Any, length: int, done: Any) -> tuple[Any, Any]:
        """A window, after `done` steps."""
        if self.options["truncate"]:
            carry = jax.tree.map(lambda leaf: jnp.where(done == 0, leaf, lax.stop_gradient(leaf)), carry)
        carry, ys = self._scan(self.moves.before_window(carry, done), arrays, start, length)
        return self.moves.after_window(carry, done + length), ys

    def broadcast(self, carry: Any, arrays: Any) -> Any:
        """The carry in the types that a window returns: with its rows, where it leaves them out, and strong types."""
        returned, _ = jax.eval_shape(lambda carry: self._scan(carry, arrays, 0, self.windows.length), carry)

        def like(leaf: Any, of_window: Any) -> Any:
            leaf = jnp.broadcast_to(leaf, of_window.shape)
            return leaf if leaf.dtype == of_window.dtype else leaf.astype(of_window.dtype)

        return jax.tree.map(like, carry, returned)

    def _scan(self, carry: Any, arrays: Any, start: Any, length: int) -> tuple[Any, Any]:
        options = dict(self.options)
        if "first_step" in options:
            options["first_step"] = options["first_step"] + start
        return scan(self.cell, self.params, carry, **arrays, length=length, **options)
