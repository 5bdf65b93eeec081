"""The tables as lines of a console."""

from collections.abc import Iterator

from benchmarks.accelerators.bars import bars
from benchmarks.accelerators.figures import Figures
from benchmarks.accelerators.tables import Tables
from benchmarks.accelerators.target import UNITS, Platform


def lines_of(tables: Tables, platform: Platform, *, operations: bool) -> Iterator[str]:
    """A line for each row, and for each bar."""
    for name, rows in tables.rows.items():
        yield f"{name}: training step, {UNITS[platform]}"
        plain = rows["plain"].trained
        for row, both in rows.items():
            if isinstance(both.trained, str) or isinstance(plain, str):
                yield f"  {row:16s} {both.trained if isinstance(both.trained, str) else both.trained.cost}"
                continue
            yield f"  {row:16s} {_line(both.trained, plain)}"
            for one in both.trained.operations if operations else ():
                yield f"      {one.cost:10,d}  {one.type[:44]:44s} {one.origin[-70:]}"
    for bar in bars(platform, tables):
        yield f"{'met    ' if bar.met else 'NOT MET'} {bar.figure:6.3f} of {bar.limit:5.3f}  {bar.text} ({bar.where})"


def _line(one: Figures, plain: Figures) -> str:
    mebibytes, ratio = one.temporary / 2**20, one.temporary / max(plain.temporary, 1)
    return (
        f"{one.cost:12,d} ({one.cost / plain.cost:5.3f})  temporary {mebibytes:8.1f} MiB ({ratio:.2f})"
        f"  compile {one.compile_seconds:5.1f} s  loops {one.loops}"
    )
