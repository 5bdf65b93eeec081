"""The benchmark page of the documentation."""

from collections.abc import Mapping

from benchmarks.bars import bars
from benchmarks.machine import LOAD_UNKNOWN, with_condition
from benchmarks.result import Result
from benchmarks.table import (
    BAR_HEADINGS,
    HEADINGS,
    SUMMARY_HEADINGS,
    bar_rows,
    markdown_table,
    notes,
    result_rows,
    summary_row,
)
from benchmarks.workloads import WORKLOADS


INTRODUCTION = """\
# Benchmarks

A training step computes the loss, the sum of squares of all outputs unless the workload says otherwise, and its
gradient for parameters and inputs. All rows of a workload run in one process and take turns. "forward", "training" and
"compile" are times relative to `plain`; the first two are the median over the rounds of the ratio within a round.
"kept" are the residuals of `jax.vjp`, and "no params" those that are not parameters. "temporary" is XLA's peak for the
training step, besides its arguments and results. Before the timing, the rows of rnnscan and of `lax.scan` gave the same
loss and gradients, to rounding. Rows of other libraries have their own parameters. Only the ratios carry over to other
machines.
"""


def make_page(
    results: Mapping[str, Result], *, machine: Mapping[str, str], command: str, descriptions: Mapping[str, str]
) -> str:
    """The page in Markdown."""
    shown = {row for result in results.values() for row in result.runners}
    shares = [result.others for result in results.values() if result.others is not None]
    load = f"Other programs took at most {100 * max(shares):.0f} % of the processors." if shares else LOAD_UNKNOWN
    parts = [with_condition(INTRODUCTION, machine, load)]
    parts += ["\n".join(f"- {heading}: {text}" for heading, text in machine.items())]
    parts.append(f"Made by `{command}`.")
    parts.append("## Summary\n\nTraining time and temporary bytes of a step, of those of `plain`.")
    summary = [summary_row(WORKLOADS[name].title, result_rows(result)) for name, result in results.items()]
    parts.append(markdown_table(SUMMARY_HEADINGS, summary))
    parts.append("## Rows")
    parts.append("| row | meaning |\n| --- | --- |")
    parts[-1] += "".join(f"\n| `{row}` | {text} |" for row, text in descriptions.items() if row in shown)
    for name, result in results.items():
        parts.append(f"## {WORKLOADS[name].title}")
        parts.append(f"Workload `{name}`.")
        parts.append(markdown_table(HEADINGS, result_rows(result)))
        parts.append("\n".join(notes(result)))
    parts.append("## Targets")
    parts.append(markdown_table(BAR_HEADINGS, bar_rows(bars(results))))
    return "\n\n".join(part.strip() for part in parts) + "\n"
