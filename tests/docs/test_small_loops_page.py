"""The figures of the page on small loops are those of the benchmarks."""

import re

from benchmarks.small_steps import USES
from pages import DOCS, table


CHOICES = ("jax 0.12", "jax 0.12, flag", "jax 0.10.2", "jax 0.10.2, flag")


def sections():
    """The ratios of each section of the measured page, forward and training, by the row."""
    parts = re.split(r"^## ", (DOCS / "benchmarks_of_small_loops.md").read_text(), flags=re.MULTILINE)[1:]
    measured = {}
    for part in parts:
        version, has_flag = re.match(r"jax (\d+\.\d+\.\d+)\S*, (with|without) the flag", part).groups()
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("|")]
        short = version.removesuffix(".0") + (", flag" if has_flag == "with" else "")
        measured[f"jax {short}"] = {row[0]: (row[3], row[6]) for row in rows if len(row) > 6}
        measured[f"jax {short}"] |= {row[:2][0] + ": " + row[1]: row[2:] for row in rows if len(row) == 4}
    return measured


def test_the_ratios_are_those_of_the_measured_page():
    measured, names = sections(), set()
    for name, *ratios in table("small_loops.md", "training step"):
        row, column = (name.partition(", ")[0], 0) if name.endswith("forward") else (name, 1)
        assert ratios == [measured[choice][row][column] for choice in CHOICES], name
        names.add(name)
    assert names == {*USES, "median", "worst", "median, forward", "worst, forward"}


def test_the_times_of_peers_are_those_of_the_measured_page():
    measured = sections()
    rows = table("small_loops.md", "log likelihood, ms")
    assert rows
    for name, *times in rows:
        assert times == [measured[choice][name][0] for choice in CHOICES[::2]], name
