"""A progress bar that compiled programs move."""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Bar:
    """A bar of tqdm that opens with the first steps of a scan, and closes when all of its steps are done.

    Args:
        label: the text before the bar.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._lock = Lock()
        self._bar: Any = None
        self._before = 0  # The steps of earlier scans that share the bar.
        self._done = 0  # Those of the scan that runs.

    def move(self, total: int, steps: int, done: int) -> None:
        """Show how far a scan is.

        Args:
            total: the steps of the whole bar.
            steps: the steps of the scan.
            done: those that are done.
        """
        from tqdm.auto import tqdm

        with self._lock:
            if self._bar is not None and done < self._done:  # The run before was interrupted.
                self._close()
            if self._bar is None:
                # Each move may draw, whatever the steps of the one before; tqdm draws at most ten times a second.
                self._bar = tqdm(total=total, desc=self._label, unit=" steps", miniters=0)
                self._before = 0
            position = min(self._before + done, total)
            self._bar.update(max(0, position - self._bar.n))
            self._done = done
            if done == steps:
                self._before, self._done = self._before + steps, 0
            if self._bar.n >= total:
                self._close()

    def _close(self) -> None:
        self._bar.close()
        self._bar, self._done = None, 0


def call_after(move: Callable[[int], None], tree: Any, done: Any, when: Any) -> Any:
    """The tree, and a call with the steps done once it is computed, if `when` is true."""
    seen = jnp.asarray(done, jnp.int32)[None]
    leaf = next((leaf for leaf in jax.tree.leaves(tree) if leaf.size and not _is_key(leaf)), None)
    if leaf is not None:
        # XLA for the CPU drops barriers, so that the call reads an element of the tree. In the same array, because
        # a call takes 0.05 ms for each.
        element = jnp.real(_first_element(lax.stop_gradient(leaf))).astype(jnp.int32)
        seen = jnp.concatenate([seen, element[None]])
    lax.cond(when, partial(jax.debug.callback, lambda seen: move(int(np.asarray(seen)[0]))), lambda _: None, seen)
    return tree


@jax.custom_batching.custom_vmap
def _first_element(leaf: Any) -> Any:
    """An element of the first row. It has no batch axis under `vmap`, so that one call serves all rows."""
    return leaf[(0,) * leaf.ndim]


@_first_element.def_vmap
def _(axis_size: int, is_batched: Any, leaf: Any) -> tuple[Any, bool]:
    return _first_element(leaf[0]), False


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.extended))


def check_tqdm() -> None:
    """Check that tqdm is installed.

    Raises:
        ImportError: if it is not.
    """
    try:
        import tqdm.auto  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "progress: the package tqdm must be installed; it is not. Run pip install tqdm, or install the extra "
            '"train" of rnnscan.'
        ) from error
