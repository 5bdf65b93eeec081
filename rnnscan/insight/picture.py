"""The picture of a trade-off: time against bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan.insight.measure_losses import Tradeoff
from rnnscan.insight.tradeoff import pareto_front


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.ticker import FuncFormatter
except ModuleNotFoundError as error:
    raise ImportError(
        f"picture: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan.',
        name=error.name,
    ) from error

Axis: TypeAlias = Literal["kept", "temporary"]
_AXES: dict[Axis, str] = {
    "kept": "kept between the forward and the backward pass",
    "temporary": "needed by both passes besides arguments and results",
}
BETTER = "lower left is better"
# Offsets of a label from its point, in points of print, nearest first.
LABEL_PLACES = [
    (dx, dy)
    for distance in range(10, 180, 12)
    for dx, dy in ((distance, 0), (0, distance), (0, -distance), (-distance, 0))
]


def tradeoff_figure(
    rows: Sequence[Tradeoff],
    title: str,
    *,
    axis: Axis = "kept",
    chosen: str | None = None,
    budget: int | None = None,
) -> Figure:
    """Draw the cost of memory choices, and their Pareto front.

    Args:
        rows: the choices, at least one.
        title: the title.
        axis: the bytes to draw: "kept" between the passes, or "temporary" in both.
        chosen: the name of the choice to mark.
        budget: bytes to mark on the axis.

    Returns:
        A matplotlib figure: bytes on the x axis, logarithmic; time relative to the first choice on the y axis.
    """
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    points = [_point(row, axis) for row in rows]
    front = [points[number] for number in pareto_front(points)]
    axes.plot(*zip(*front, strict=True), color="C0", linewidth=1, drawstyle="steps-post", zorder=2)
    sizes, times = zip(*points, strict=True)
    axes.scatter(sizes, times, s=60, zorder=3)
    axes.axhline(times[0], color="0.6", linewidth=1, linestyle="--")
    if budget is not None:
        axes.axvline(budget, color="C3", linewidth=1)
    for row, point in zip(rows, points, strict=True):
        if row.choice == chosen:
            axes.scatter(point[0], point[1], s=260, facecolors="none", edgecolors="C3", linewidths=1.5, zorder=4)
    bounds = [*sizes] if budget is None else [*sizes, budget]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(bounds) / 2, max(bounds) * 2)
    axes.set_ylim(min(0.9, *times) - 0.15, max(1.1, *times) + 0.15)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: readable_bytes(count)))
    axes.set_xlabel(_AXES[axis] + ("" if budget is None else f"; the budget, {readable_bytes(budget)}, in red"))
    axes.set_ylabel(f"time, relative to {rows[0].choice}")
    axes.set_title(title, loc="left", wrap=True)
    axes.grid(which="major", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(0.01, 0.015, BETTER, transform=axes.transAxes, fontsize=8, color="0.4", style="italic")
    _label_points(figure, axes, [(row.choice, point) for row, point in zip(rows, points, strict=True)])
    return figure


def save_tradeoff_figure(rows: Sequence[Tradeoff], title: str, path: Path, **options: Any) -> None:
    """Draw the cost of memory choices into a file.

    Args:
        rows: the choices, at least one.
        title: the title.
        path: a file with an ending that matplotlib knows, such as .png, .svg or .pdf. Missing directories are made.
        options: as in `tradeoff_figure`.

    Raises:
        ValueError: if matplotlib cannot write files with this ending.
    """
    check_picture_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tradeoff_figure(rows, title, **options).savefig(path)


def _point(row: Tradeoff, axis: Axis) -> tuple[int | float, int | float]:
    nbytes = row.kept_bytes if axis == "kept" else row.temporary_bytes
    if nbytes is None:
        raise ValueError(
            f"picture: axis={axis!r} needs temporary bytes of every choice; got none for {row.choice!r}, because this "
            "backend has no memory analysis. Draw axis='kept'."
        )
    return max(nbytes, 1), row.relative_time


def check_picture_file(path: Path) -> None:
    """Reject a file that matplotlib cannot write, before the measurement.

    Args:
        path: the file.

    Raises:
        ValueError: if matplotlib cannot write files with this ending.
    """
    endings = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in endings:
        raise ValueError(
            f"picture: the file's ending must be one of .{', .'.join(sorted(endings))}; got {str(path)!r}. "
            "Write tradeoff.png, say."
        )


def _label_points(figure: Figure, axes: Axes, points: Sequence[tuple[str, tuple[int | float, int | float]]]) -> None:
    """Write each choice near its point, without covering a label or a point."""
    figure.canvas.draw()  # Sets the layout, and with it the positions.
    taken = [text.get_window_extent().extents for text in axes.texts]
    for _, point in points:
        x, y = axes.transData.transform(point)
        taken.append((x - 12, y - 12, x + 12, y + 12))
    frame = axes.get_window_extent()
    for choice, point in points:
        for place in LABEL_PLACES:
            label = _write_label(axes, choice, point, place)
            box = label.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            free = all(box.x1 < x0 or x1 < box.x0 or box.y1 < y0 or y1 < box.y0 for x0, y0, x1, y1 in taken)
            if (inside and free) or place == LABEL_PLACES[-1]:
                break
            label.remove()
        taken.append((box.x0, box.y0, box.x1, box.y1))
        if place not in LABEL_PLACES[:4]:
            _draw_line(axes, point, place)


def _write_label(axes: Axes, choice: str, point: tuple[int | float, int | float], place: tuple[int, int]) -> Annotation:
    dx, dy = place
    return axes.annotate(
        choice,
        xy=point,
        xytext=place,
        textcoords="offset points",
        horizontalalignment="center" if dx == 0 else ("left" if dx > 0 else "right"),
        verticalalignment="center" if dy == 0 else ("bottom" if dy > 0 else "top"),
        fontsize=9,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
    )


def _draw_line(axes: Axes, point: tuple[int | float, int | float], place: tuple[int, int]) -> None:
    axes.annotate(
        "",
        xy=point,
        xytext=place,
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.7},
    )
