"""Draw the training step of rnnscan and others, from the tables of benchmarks.md.

It draws docs/pictures/time_and_memory.svg, and time_and_memory_narrow.svg for narrow screens.

    python docs/make_benchmark_picture.py

A point is a row: its time and its temporary memory relative to plain autodiff of `lax.scan`, as medians over the shapes
of a cell. The tests check that the picture is up to date.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any


DOCS = Path(__file__).parent
PICTURE = DOCS / "pictures" / "time_and_memory.svg"
NARROW = PICTURE.with_stem("time_and_memory_narrow")
PANELS = {"LSTM": ["lstm-small", "lstm-narrow", "lstm-large"], "GRU": ["gru-small", "gru-narrow", "gru-large"]}
LABELS = {
    "plain": "lax.scan",
    "checkpoint": "lax.scan with jax.checkpoint",
    "rnnscan": "rnnscan",
    "rnnscan-all": 'rnnscan, recompute="all"',
    "linen": "Flax linen",
    "nnx": "Flax nnx",
    "haiku": "Haiku",
    "equinox": "Equinox",
    "keras": "Keras on JAX",
}
OWN, PLAIN, OTHERS = "#d95f0e", "#333333", "#4292c6"
LINE_HEIGHT = 0.038  # the least distance between two labels, in relative time


def workloads(text: str) -> dict[str, dict[str, dict[str, str]]]:
    """The tables of the page: workload -> row -> column -> cell. Of two columns of one name it takes the first."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name, table in re.findall(r"^Workload `([\w-]+)`\.\n\n((?:\|.*\n)+)", text, re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        found[name] = {row[0]: dict(zip(reversed(header), reversed(row), strict=True)) for row in rows}
    return found


def in_mib(size: str) -> float:
    """A size of the page, "56.1 MiB", as a number of MiB."""
    number, unit = size.split()
    return float(number) * {"KiB": 2**-10, "MiB": 1.0, "GiB": 2**10}[unit]


def points(text: str) -> dict[str, dict[str, tuple[float, float]]]:
    """For each panel: row -> memory and time relative to plain, medians over its shapes, without incomplete rows."""
    tables = workloads(text)
    return {
        panel: {
            row: (
                median(in_mib(table[row]["temporary"]) / in_mib(table["plain"]["temporary"]) for table in shapes),
                median(float(table[row]["training"]) for table in shapes),
            )
            for row in LABELS
        }
        for panel, names in PANELS.items()
        for shapes in [[tables[name] for name in names]]
    }


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Move the heights as little as possible until they are `distance` apart, in the same order."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    groups: list[list[int]] = []
    for place in order:
        groups.append([place])
        while len(groups) > 1 and _bottom(groups[-1], heights, distance) < _top(groups[-2], heights, distance):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = list(heights)
    for group in groups:
        for number, place in enumerate(group):
            moved[place] = _bottom(group, heights, distance) + distance * (number + 0.5)
    return moved


def _bottom(group: Sequence[int], heights: Sequence[float], distance: float) -> float:
    return sum(heights[place] for place in group) / len(group) - distance * len(group) / 2


def _top(group: Sequence[int], heights: Sequence[float], distance: float) -> float:
    return _bottom(group, heights, distance) + distance * len(group)


def figure(text: str, *, narrow: bool = False) -> Any:
    """Draw the figure, with its panels beside each other, or for a narrow screen below each other."""
    from matplotlib.figure import Figure

    panels = points(text)
    drawn = Figure(figsize=(4.8, 8.0) if narrow else (9.6, 4.4), layout="constrained")
    axes = drawn.subplots(*((len(panels), 1) if narrow else (1, len(panels))), sharex=True, sharey=True)
    for panel, (name, rows) in zip(axes, panels.items(), strict=True):
        draw_panel(panel, name, rows)
    for panel in axes if narrow else axes[:1]:
        panel.set_ylabel("time of a training step / lax.scan")
    drawn.supxlabel("temporary memory of a training step / lax.scan", fontsize="medium")
    return drawn


def draw_panel(axes: Any, name: str, rows: dict[str, tuple[float, float]]) -> None:
    """Draw the points of one cell, with a label beside each."""
    axes.set_title(f"{name}: the median of {len(PANELS[name])} shapes", loc="left")
    axes.set_xlim(0, 2.4)
    axes.set_ylim(0.5, 1.3)
    axes.set_xticks([0, 0.5, 1, 1.5, 2])
    axes.axvline(1, color="#dddddd", zorder=0)
    axes.axhline(1, color="#dddddd", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(0.03, 0.52, "less of both", color="#777777", style="italic", fontsize="small")
    for row, (memory, time) in rows.items():
        axes.plot([memory], [time], "o", color=color_of(row), markersize=6)
    write_labels(axes, {row: point for row, point in rows.items() if point[0] >= 0.9})
    for row, (memory, time) in rows.items():
        if memory < 0.4:
            axes.text(
                0.04, time + 0.035, LABELS[row], color=color_of(row), verticalalignment="center", fontsize="small"
            )
        elif memory < 0.9:
            axes.text(
                memory + 0.06, time, LABELS[row], color=color_of(row), verticalalignment="center", fontsize="small"
            )


def write_labels(axes: Any, rows: dict[str, tuple[float, float]]) -> None:
    """Write labels right of points that lie close together, with a line to each."""
    heights = spread([time for _, time in rows.values()], LINE_HEIGHT)
    right = max(memory for memory, _ in rows.values()) + 0.12
    for (row, (memory, time)), height in zip(rows.items(), heights, strict=True):
        axes.plot([memory, right - 0.02], [time, height], "-", color=color_of(row), linewidth=0.5)
        axes.text(right, height, LABELS[row], color=color_of(row), verticalalignment="center", fontsize="small")


def color_of(row: str) -> str:
    """The color of a row."""
    return OWN if row.startswith("rnnscan") else PLAIN if row in ("plain", "checkpoint") else OTHERS


def main() -> None:
    """Write the pictures."""
    import matplotlib

    # The same file from the same figures, and text that is text.
    matplotlib.rcParams.update({"svg.hashsalt": "rnnscan", "svg.fonttype": "none"})
    text = (DOCS / "benchmarks.md").read_text()
    figure(text).savefig(PICTURE, metadata={"Date": None})
    figure(text, narrow=True).savefig(NARROW, metadata={"Date": None})


if __name__ == "__main__":
    main()
