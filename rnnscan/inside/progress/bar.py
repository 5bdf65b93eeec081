"""A progress bar that compiled programs move."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
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

    def move(self, total: int, steps: int, done: Any) -> None:
        """Show how far a scan is.

        Args:
            total: the steps of the whole bar.
            steps: the steps of the scan.
            done: those that are done.
        """
        from tqdm.auto import tqdm

        with self._lock:
            if self._bar is None:
                self._bar, self._before = tqdm(total=total, desc=self._label, unit=" steps", mininterval=0), 0
            position = min(self._before + int(done), total)
            self._bar.update(max(0, position - self._bar.n))  # Callbacks may come in another order.
            if done == steps:
                self._before += steps
            if self._bar.n >= total:
                self._bar.close()
                self._bar = None


def call_after(move: Callable[[Any], None], tree: Any, done: Any) -> Any:
    """The tree, and a call with the steps done once it is computed."""
    leaf = next((leaf for leaf in jax.tree.leaves(tree) if leaf.size and not _is_key(leaf)), None)
    if leaf is None:
        jax.debug.callback(move, done)
    else:
        # XLA for the CPU drops barriers, so that the call reads an element of the tree.
        jax.debug.callback(lambda done, _: move(done), done, _first_element(lax.stop_gradient(leaf)))
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
