"""A case of the sweep: a use of `make bench-beyond` or a cell of `make bench`, at some sizes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import rnnscan as rs
from benchmarks import rows
from benchmarks.beyond import rows as beyond
from benchmarks.beyond.use import Draw, Range, ranges_of, sizes_in_words
from benchmarks.beyond.uses import USES
from benchmarks.rows import JaxRow
from benchmarks.workloads import CELLS, WORKLOADS, Shape


# The sizes of a cell, in the order of `Shape`, and those that only some cells have.
SHAPE = ("steps", "rows", "features", "hidden")
CELL_SIZES: Mapping[str, Mapping[str, Range]] = {
    "attention": {"positions": (1, 1024)},
    "lstm-stack": {"layers": (2, 4)},
}
CELL_TOLERANCE = 1e-4

# The long uses differ from others in their sizes only.
NAMES = (*CELLS, *(name for name, use in USES.items() if not use.long))

# Other plans of rnnscan, by the options of `rs.scan`.
PLANS: Mapping[str, Mapping[str, Any]] = {
    "recompute all": {"memory": rs.Memory(recompute="all")},
    "unsplit": {"engine": "lax"},
    "save all, unsplit": {"memory": None},
}


@dataclass(frozen=True)
class Case:
    """A use or a cell at some sizes.

    Attributes:
        name: one of `NAMES`.
        sizes: its sizes, by name.
    """

    name: str
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.name}: {sizes_in_words(self.sizes)}"

    @property
    def tolerance(self) -> float:
        """The largest relative difference from plain autodiff that needs no look at float64."""
        return CELL_TOLERANCE if self.name in CELLS else USES[self.name].tolerance

    def rows(self, names: Iterable[str], draw: Draw | None = None) -> dict[str, JaxRow]:
        """Rows: "plain", "checkpoint", "rnnscan" and the names of `PLANS`. `draw` makes a use's arguments."""
        loss, arguments, data = self._loss(draw or Draw())
        return {name: JaxRow(loss(self._scan(name)), arguments, data) for name in names}

    def row_of(self, scan: Callable[..., Any]) -> JaxRow:
        """The row of a scan that is called as `rs.scan` is, with rnnscan's cell."""
        loss, arguments, data = self._loss(Draw())
        return JaxRow(loss(self._with_library_cell(scan)), arguments, data)

    def _loss(self, draw: Draw) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]:
        if self.name in CELLS:
            sizes = dict(self.sizes)
            workload = CELLS[self.name](Shape(*(sizes.pop(size) for size in SHAPE)), **sizes)
            return workload.loss, workload.arguments(), ()
        use = USES[self.name]
        problem = use.make(draw, **{**use.sizes, **self.sizes})
        floats, others = problem.split_arguments()
        return problem.loss, (floats,), (others,)

    def _scan(self, row: str) -> Callable[..., Any]:
        if row in ("plain", "checkpoint"):
            module = rows if self.name in CELLS else beyond
            return module.plain_scan if row == "plain" else module.checkpoint_scan
        options = PLANS.get(row, {})
        return self._with_library_cell(partial(rs.scan, **options))

    def _with_library_cell(self, scan: Callable[..., Any]) -> Callable[..., Any]:
        if self.name not in CELLS:
            return scan
        return lambda pair, *arguments: scan(pair.library, *arguments)


def published_cases() -> list[Case]:
    """The uses and cells at the sizes of `make bench-beyond` and `make bench`."""
    uses = [Case(name, dict(use.sizes)) for name, use in USES.items() if not use.long]
    cells = [
        Case(name if name in CELLS else name.rpartition("-")[0], dict(zip(SHAPE, workload.shape, strict=True)))
        for name, workload in WORKLOADS.items()
        if workload.family != "long_lstm"  # Its loss is another one.
    ]
    return [*cells, *uses]


def size_ranges(name: str) -> dict[str, Range]:
    """The range of each size of a use or a cell."""
    if name not in CELLS:
        return USES[name].size_ranges
    more = CELL_SIZES.get(name, {})
    return ranges_of(dict.fromkeys([*SHAPE, *more], 1), more)
