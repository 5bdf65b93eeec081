"""The result of trace()."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from rnnscan._util.messages import describe, listing, nearest
from rnnscan.inside.tracing.sites import Kind, matching, with_ends
from rnnscan.inside.tracing.summary import TraceSummary, summarize


if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ValueFacts:
    """What is known of a value.

    Attributes:
        kind: a name, a leaf of the carry, or one of y.
        rank: the number of its axes from that of the steps on. `vmap` adds axes before it.
        reverse: whether the outermost scan around it runs from the last step to the first.
    """

    kind: Kind
    rank: int
    reverse: bool = False


class ByPath(Mapping[str, Any]):
    """Arrays by path, in the order of the traced call."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> Any:
        """The array of a path or of the end of one; a tuple for a name with several arrays, such as `"carry"`."""
        if name in self._arrays:
            return self._arrays[name]
        paths = matching(name, self._arrays)
        if not paths:
            raise KeyError(f"{name!r}: there are {listing(self._arrays)}.{nearest(name, with_ends(self._arrays))}")
        heads = {path.rpartition("/")[0] for path in paths}
        if len(heads) > 1:
            raise KeyError(f"{name!r} must be the name of one cell's values; got {listing(paths)}. Write a path.")
        arrays = tuple(self._arrays[path] for path in paths)
        return arrays[0] if len(arrays) == 1 else arrays

    def __iter__(self) -> Iterator[str]:
        """The paths."""
        return iter(self._arrays)

    def __len__(self) -> int:
        """The number of arrays."""
        return len(self._arrays)

    def __repr__(self) -> str:
        """The types of the arrays."""
        return f"{{{', '.join(f'{path!r}: {describe(array)}' for path, array in self._arrays.items())}}}"


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays", "cotangent_arrays", "loss"],
    meta_fields=["subject", "steps", "rows", "facts", "reasons"],
)
@dataclass(frozen=True, eq=False, repr=False)
class Trace(Mapping[str, Any]):
    """Values inside of scans, by path. Made by `rnnscan.trace`. It is a pytree of arrays.

    Attributes:
        arrays: the values, `(T, ...)` or `(len(steps), ...)`.
        cotangent_arrays: the cotangent of each value; None without.
        loss: the loss, a scalar; None without.
        subject: the cell or function, in words.
        steps: the steps of the values.
        rows: the rows of the values; None: all.
        facts: what is known of each value, with its path.
        reasons: the paths of values that cannot be traced, and why.
    """

    arrays: tuple[Any, ...]
    cotangent_arrays: tuple[Any, ...]
    loss: Any
    subject: str
    steps: tuple[int, ...]
    rows: tuple[int, ...] | None
    facts: tuple[tuple[str, ValueFacts], ...]
    reasons: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> Any:
        """The value of a path or of the end of one; a tuple for a name with several values, such as `"carry"`."""
        return self._by_path[name]

    def __iter__(self) -> Iterator[str]:
        """The paths."""
        return iter(self._by_path)

    def __len__(self) -> int:
        """The number of values."""
        return len(self.facts)

    def __repr__(self) -> str:
        """The types of the values."""
        of = f", cotangents of {len(self.cotangents)}" if self.loss is not None else ""
        return f"Trace({self.subject}, {len(self.steps)} steps, {self._by_path!r}{of})"

    @property
    def _by_path(self) -> ByPath:
        return ByPath({path: array for (path, _), array in zip(self.facts, self.arrays, strict=True)})

    @property
    def cotangents(self) -> ByPath:
        """The gradients of the loss with respect to the values, by path. Integers have none."""
        pairs = zip(self.facts, self.cotangent_arrays, strict=True)
        return ByPath({path: array for (path, _), array in pairs if array is not None})

    @property
    def untraced(self) -> dict[str, str]:
        """The paths of values that cannot be traced, and why: those in the branches of a `lax.cond`, for example."""
        return dict(self.reasons)

    def summary(self) -> TraceSummary:
        """A table with the range, norm, saturation and first step that is not finite of each value.

        The first step is that which ran first: in a scan with `reverse=True` the last of the input.

        Raises:
            TypeError: within `jax.jit`, where values are not known. Return the trace from the jitted function.
        """
        return summarize(self)

    def draw(self, names: Sequence[str] | None = None, *, row: int = 0, title: str = "") -> "Figure":
        """Draw the values of one row over time and units, and the norms of cotangents over time.

        Args:
            names: the values to draw, as in `trace`; None: all that have a time axis and units.
            row: the row, counted among those that are stored.
            title: the title; empty: the cell.

        Returns:
            A matplotlib figure, with `savefig(path)`. It needs the extra `plot`.

        Raises:
            ValueError: if a name or the row is not there.
        """
        from rnnscan.inside.tracing.picture import draw_trace

        return draw_trace(self, names, row, title)
