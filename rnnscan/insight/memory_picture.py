"""The picture of a memory report: the predicted memory of inference and training, and XLA's figures, as bars."""

from collections.abc import Iterable, Mapping

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan.insight.memory_report import MemoryReport
from rnnscan.insight.report_rows import CompiledBytes, PhaseMemory


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MultipleLocator
except ModuleNotFoundError as error:
    raise ImportError(
        f"memory_picture: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan.',
        name=error.name,
    ) from error


COLORS = {
    "parameters": "#8c6bb1",
    "closed-over arrays": "#bfa3d0",
    "carry and inputs": "#6baed6",
    "outputs": "#9ecae1",
    "gradients": "#fdae6b",
    "kept": "#74c476",
    "kept in host memory": "#c7e9c0",
    "scratch": "#d9d9d9",
    "optimizer": "#d4b9da",
}
# XLA counts parameters and inputs together, as arguments.
XLA_COLORS = {"XLA: arguments": "#636363", "XLA: results": "#969696", "XLA: temporary": "#bdbdbd"}


def memory_figure(report: MemoryReport, title: str = "") -> Figure:
    """Draw a report of `rnnscan.memory_report`.

    Args:
        report: the report.
        title: the title; empty: the report's first line.

    Returns:
        A matplotlib figure: the predicted bars of inference and training, each with XLA's bar below it.
    """
    bars: dict[str, Mapping[str, int]] = {}
    for name, phase in (("inference", report.inference), ("training", report.training)):
        bars[f"{name}, predicted"] = _groups(phase)
        if phase.compiled is not None:
            without = " (no optimizer)" if any(row.role == "optimizer" for row in phase.rows) else ""
            bars[f"{name}, by XLA{without}"] = _of_compiled(phase.compiled)
    figure = Figure(figsize=(9, 1.6 + 0.55 * len(bars)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for row, groups in enumerate(bars.values()):
        _draw_bar(axes, row, groups)
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    longest = max(sum(groups.values()) for groups in bars.values())
    axes.xaxis.set_major_locator(MultipleLocator(2 ** max(0, (longest // 4).bit_length())))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: readable_bytes(count)))
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title or report.summary[0], loc="left", fontsize=9, wrap=True)
    _add_legend(figure, [group for groups in bars.values() for group in groups])
    return figure


def _groups(phase: PhaseMemory) -> dict[str, int]:
    """The bytes of a phase by role, in the order of the colors."""
    sizes = dict.fromkeys(COLORS, 0)
    for row in phase.rows:
        sizes["kept in host memory" if row.offloaded else row.role] += row.bytes
    return {group: size for group, size in sizes.items() if size}


def _of_compiled(compiled: CompiledBytes) -> dict[str, int]:
    return dict(zip(XLA_COLORS, (compiled.arguments, compiled.results, compiled.temporary), strict=True))


def _draw_bar(axes: Axes, row: int, groups: Mapping[str, int]) -> None:
    left = 0
    for group, size in groups.items():
        axes.barh(row, size, left=left, height=0.62, color=(COLORS | XLA_COLORS)[group], edgecolor="white")
        left += size
    axes.annotate(readable_bytes(left), (left, row), (4, 0), textcoords="offset points", va="center", fontsize=8)


def _add_legend(figure: Figure, drawn: Iterable[str]) -> None:
    colors = COLORS | XLA_COLORS
    present = [group for group in colors if group in set(drawn)]
    handles = [Patch(color=colors[group], label=group) for group in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
