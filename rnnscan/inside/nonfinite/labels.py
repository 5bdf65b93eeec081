"""Label the names and results of every step in a jaxpr, in the jaxpr of a derivative too.

A label is written twice, because derivatives drop one or the other. `checkpoint_name` stays with values. A call of a
`jax.jit` with a name stays with tangents and cotangents.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.tree_util import keystr

from rnnscan.inside.progress.cell import Progress
from rnnscan.naming import reading
from rnnscan.paths import current_path
from rnnscan.scan_observer import Window, current_window, observing_scans
from rnnscan.scanning import scan


_PREFIX = "rnnscan label "


@dataclass(frozen=True)
class Label:
    """A label in a jaxpr.

    Attributes:
        text: the name, or the place of a result, such as `carry[0]`.
        is_name: whether it is a name of the cell.
        rows: the size of the batch; None: rows have no axis.
        window: where the steps are in the sequence.
    """

    text: str
    is_name: bool
    rows: int | None
    window: Window

    @property
    def steps(self) -> int:
        """The steps of the sequence."""
        return self.window.steps

    def __str__(self) -> str:
        """The label as a jaxpr holds it."""
        return f"{_PREFIX}{int(self.is_name)} {self.rows or 0} {' '.join(map(str, self.window))} {self.text}"

    @staticmethod
    def read(text: str) -> "Label | None":
        """The label that a jaxpr holds; None if the text is something else."""
        if not text.startswith(_PREFIX):
            return None
        is_name, rows, start, every, steps, label = text.removeprefix(_PREFIX).split(" ", 5)
        return Label(label, is_name == "1", int(rows) or None, Window(int(start), int(every), int(steps)))

    def put_on(self, leaf: Any) -> Any:
        """The value with the label."""

        def labeled(leaf: Any) -> Any:
            return leaf

        labeled.__name__ = str(self)
        return jax.jit(labeled)(checkpoint_name(leaf, str(self)))


@dataclass(unsafe_hash=True)
class _Labeler:
    """Labels the names of a step. Equal ones share the traces of functions that a user jits."""

    rows: int | None
    window: Window
    depth: int = 0

    def read(self, leaf: Any, label: str) -> Any:
        return Label(_with_path(label), True, self.rows, self.window).put_on(leaf)

    def forget(self) -> None:
        pass

    def label_results(self, root: str, tree: Any) -> Any:
        def put(path: Any, leaf: Any) -> Any:
            return Label(_with_path(f"{root}{keystr(path)}"), False, self.rows, self.window).put_on(leaf)

        return jax.tree_util.tree_map_with_path(put, tree)


def _with_path(label: str) -> str:
    return "/".join((*current_path(), label))


@dataclass(frozen=True)
class PlainScans:
    """Runs each scan as one plain `lax.scan` over a step with labels, inner ones too."""

    def scan(self, cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        """Run a scan, as a `ScanObserver` does."""
        while isinstance(cell, Progress):  # Its windows would hide the steps.
            cell = cell.cell
        leaves = jax.tree.leaves(xs)
        steps = leaves[0].shape[0] if leaves else options["length"]
        labeler = _Labeler(_rows(carry, xs, options), current_window() or Window(0, 0, steps))
        plain: dict[str, Any] = {"engine": "lax", "memory": None, "parallel": None}
        return scan(_LabeledCell(cell, labeler, self), params, carry, xs, **(options | plain))

    def step(self, cell: Any, carry: Any, xs: Any, steps: int) -> Any:
        """The step of a loop that stops by a condition, as a `StepObserver` wants it. Without inputs it has no rows."""
        rows = None if xs is None else _rows(carry, xs, {})
        return _LabeledCell(cell, _Labeler(rows, Window(0, 0, steps)), self)


class _LabeledCell:
    """A cell with labels. It has the attributes of the cell."""

    def __init__(self, cell: Any, labeler: _Labeler, observer: PlainScans) -> None:
        self.__wrapped__ = cell
        self._labeler, self._observer = labeler, observer
        if hasattr(cell, "with_key"):
            self.with_key = self._with_key

    def __call__(self, params: Any, carry: Any, x: Any) -> Any:
        return self._run(self.__wrapped__, params, carry, x)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def _with_key(self, key: Any, params: Any, x: Any) -> Any:
        step = self.__wrapped__.with_key(key, params, x)
        return lambda params, carry, x: self._run(step, params, carry, x)

    def _run(self, step: Any, params: Any, carry: Any, x: Any) -> Any:
        with observing_scans(self._observer), reading(self._labeler):
            results = step(params, carry, x)
        if not isinstance(results, tuple) or len(results) != 2:
            return results  # `scan` says what is wrong.
        carry, y = results
        return self._labeler.label_results("carry", carry), self._labeler.label_results("y", y)


def _rows(carry: Any, xs: Any, options: Any) -> int | None:
    """The size of the batch axis. A row without one has a carry of vectors."""
    for name, axis in (("seq_lengths", 0), ("mask", 1), ("reset", 1)):
        if options.get(name) is not None:
            shape = options[name].shape
            return shape[axis] if len(shape) > axis else None
    shapes = [leaf.shape[1:] for leaf in jax.tree.leaves(xs)] + [
        jax.numpy.shape(leaf) for leaf in jax.tree.leaves(carry)
    ]
    return next((shape[0] for shape in shapes if len(shape) > 1), None)
