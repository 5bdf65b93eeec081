"""The page of the documentation that shows what was measured."""

from collections.abc import Mapping

from benchmarks.bars import bars
from benchmarks.result import Result
from benchmarks.table import BAR_HEADINGS, HEADINGS, bar_rows, markdown_table, notes, result_rows
from benchmarks.workloads import WORKLOADS


INTRODUCTION = """\
# Benchmarks

One training step is the loss, the sum of squares of all outputs unless the workload says otherwise, and its gradient
for parameters and inputs. All rows of a workload run in one process and take turns; "forward", "training" and "compile"
are times relative to `plain`, the first two as the median over the rounds of the ratio within a round. "kept" is what
`jax.vjp` holds between the passes, "no params" the same without what are parameters themselves, "temporary" the peak
that XLA's memory analysis gives for the training step beside its arguments and results. Before anything was timed, the
rows of rnnscan and of `lax.scan` gave the same loss and gradients, to rounding. Rows of other libraries have parameters
of their own. Only the ratios carry over to other machines.
"""


def make_page(
    results: Mapping[str, Result], *, machine: Mapping[str, str], command: str, descriptions: Mapping[str, str]
) -> str:
    """The page in Markdown.

    Args:
        results: by workload.
        machine: what it was measured on, by heading.
        command: that measured it.
        descriptions: of rows.
    """
    shown = {row for result in results.values() for row in result.runners}
    parts = [INTRODUCTION, "\n".join(f"- {heading}: {text}" for heading, text in machine.items())]
    parts.append(f"Made by `{command}`.")
    parts.append("| row | what it is |\n| --- | --- |")
    parts[-1] += "".join(f"\n| `{row}` | {text} |" for row, text in descriptions.items() if row in shown)
    for name, result in results.items():
        parts.append(f"## {WORKLOADS[name].title}")
        parts.append(f"Workload `{name}`.")
        parts.append(markdown_table(HEADINGS, result_rows(result)))
        parts.append("\n".join(notes(result)))
    parts.append("## What was aimed at")
    parts.append(markdown_table(BAR_HEADINGS, bar_rows(bars(results))))
    return "\n\n".join(part.strip() for part in parts) + "\n"
