"""Tables of measurements, for the console and for Markdown."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.bars import Bar
from benchmarks.result import Result
from rnnscan._util.byte_sizes import readable_bytes


HEADINGS = (
    "row",
    "forward",
    "training",
    "ms",
    "kept",
    "kept, of plain",
    "no params",
    "temporary",
    "temporary, of plain",
    "compile",
)
# The headings of columns of text, which start on the left.
_TEXTS = frozenset({"row", "use", "workload", "what", "target", "meaning", "loops", "met", "where", "project"})
_TEXTS |= {"memory", "figure", "version", "cause", "sizes", "task", "published", "source", "loop", "program"}
# What the summary says of each of these rows: training time and temporary bytes, of plain's.
SUMMARY_ROWS = ("checkpoint", "rnnscan", "rnnscan-all")
SUMMARY_HEADINGS = ("workload", *(f"{row}: {what}" for row in SUMMARY_ROWS for what in ("training", "temporary")))
BAR_HEADINGS = ("target", "reached", "limit", "met", "where")


def result_rows(result: Result) -> list[tuple[str, ...]]:
    """The cells of a workload's table, a tuple a row, in the order of `HEADINGS`."""
    return [
        (
            name,
            f"{result.forward_ratio(name):.2f}",
            f"{result.train_ratio(name):.2f}",
            f"{result.train_milliseconds(name):.1f}",
            _bytes(runner.kept),
            _figure(result.kept_ratio(name)),
            _bytes(runner.kept_without_params),
            _bytes(runner.temporary),
            _figure(result.temporary_ratio(name)),
            _figure(result.compile_ratio(name)),
        )
        for name, runner in result.runners.items()
    ]


def summary_row(title: str, rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The cells of a workload in the summary, from those of its table."""
    by_name = {row[0]: dict(zip(HEADINGS, row, strict=True)) for row in rows}
    kinds = ("training", "temporary, of plain")
    return title, *(by_name.get(row, {}).get(kind, "") for row in SUMMARY_ROWS for kind in kinds)


def bar_rows(bars: Iterable[Bar]) -> list[tuple[str, ...]]:
    """The cells of the table of bars, in the order of `BAR_HEADINGS`."""
    return [
        (bar.text, f"{bar.figure:.3f}", f"{bar.limit:.2f}", "met" if bar.met else "**not met**", bar.where)
        for bar in bars
    ]


def notes(result: Result) -> list[str]:
    """The notes below a workload's table."""
    lines = [
        f"{len(result.train['plain'])} rounds of training steps, {len(result.forward['plain'])} of forward passes."
    ]
    if result.others is not None:
        verdict = ": too much for reliable times" if result.busy else ""
        lines.append(f"Other programs took {100 * result.others:.0f} % of the processors{verdict}.")
    return lines + [f"Without {row}: {reason}." for row, reason in result.absent.items()]


def console_with(machine: Mapping[str, str]) -> Console:
    """A console that begins with the machine. In a narrow terminal a wide table wraps in every cell, so it is wide."""
    console = Console(highlight=False, width=max(Console().width, 125))
    for heading, text in machine.items():
        console.print(f"{heading}: {escape(text)}")
    return console


def rich_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table for the console."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if _is_text(heading) else "right")
    for row in rows:
        table.add_row(*(cell.strip("*") for cell in row), style="red" if "**not met**" in row else None)
    return table


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---" if _is_text(heading) else "---:" for heading in headings]
    return "\n".join(f"| {' | '.join(row)} |" for row in [headings, rule, *rows])


def _is_text(heading: str) -> bool:
    return heading in _TEXTS


def _bytes(count: int | None) -> str:
    return "" if count is None else readable_bytes(count)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
