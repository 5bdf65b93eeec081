"""The picture of a trade-off: time against kept bytes."""

from collections.abc import Sequence
from pathlib import Path

from rnnscan.insight.tradeoff import Tradeoff, readable_bytes


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.ticker import FuncFormatter
except ModuleNotFoundError as error:
    raise ImportError(
        f"picture: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan.'
    ) from error

BETTER = "lower left is better"
# Where a label may stand beside its point, in points of print: the nearest places first.
LABEL_PLACES = [
    (dx, dy)
    for distance in range(10, 180, 12)
    for dx, dy in ((distance, 0), (0, distance), (0, -distance), (-distance, 0))
]


def tradeoff_figure(rows: Sequence[Tradeoff], title: str) -> Figure:
    """Draw what memory choices cost.

    Args:
        rows: the choices, at least one.
        title: what was measured.

    Returns:
        A matplotlib figure: kept bytes on the x axis, logarithmic; time relative to the first choice on the y axis.
    """
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    kept = [row.kept_bytes for row in rows]
    times = [row.relative_time for row in rows]
    axes.scatter(kept, times, s=60, zorder=3)
    axes.axhline(times[0], color="0.6", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(kept) / 2, max(kept) * 2)
    axes.set_ylim(min(0.9, *times) - 0.15, max(1.1, *times) + 0.15)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: readable_bytes(count)))
    axes.set_xlabel("kept between the forward and the backward pass")
    axes.set_ylabel(f"time, relative to {rows[0].choice}")
    axes.set_title(title, loc="left")
    axes.grid(which="major", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(0.01, 0.015, BETTER, transform=axes.transAxes, fontsize=8, color="0.4", style="italic")
    _label_points(figure, axes, rows)
    return figure


def save_tradeoff_figure(rows: Sequence[Tradeoff], title: str, path: Path) -> None:
    """Draw what memory choices cost, into a file.

    Args:
        rows: the choices, at least one.
        title: what was measured.
        path: a file whose ending matplotlib knows, such as .png, .svg or .pdf. Missing directories are made.

    Raises:
        ValueError: if the ending is none that matplotlib can write.
    """
    check_picture_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tradeoff_figure(rows, title).savefig(path)


def check_picture_file(path: Path) -> None:
    """Refuse a file that no picture can be written to, before anything is measured.

    Args:
        path: the file.

    Raises:
        ValueError: if the ending is none that matplotlib can write.
    """
    endings = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in endings:
        raise ValueError(
            f"picture: the file's ending must be one of .{', .'.join(sorted(endings))}; got {str(path)!r}. "
            "Write tradeoff.png, say."
        )


def _label_points(figure: Figure, axes: Axes, rows: Sequence[Tradeoff]) -> None:
    """Write each choice beside its point, where neither a label nor a point is yet."""
    figure.canvas.draw()  # Places are known only once the layout is.
    taken = [text.get_window_extent().extents for text in axes.texts]
    for row in rows:
        x, y = axes.transData.transform((row.kept_bytes, row.relative_time))
        taken.append((x - 12, y - 12, x + 12, y + 12))
    frame = axes.get_window_extent()
    for row in rows:
        for place in LABEL_PLACES:
            label = _write_label(axes, row, place)
            box = label.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            free = all(box.x1 < x0 or x1 < box.x0 or box.y1 < y0 or y1 < box.y0 for x0, y0, x1, y1 in taken)
            if (inside and free) or place == LABEL_PLACES[-1]:
                break
            label.remove()
        taken.append((box.x0, box.y0, box.x1, box.y1))
        if place not in LABEL_PLACES[:4]:
            _draw_line(axes, row, place)


def _write_label(axes: Axes, row: Tradeoff, place: tuple[int, int]) -> Annotation:
    dx, dy = place
    return axes.annotate(
        row.choice,
        xy=(row.kept_bytes, row.relative_time),
        xytext=place,
        textcoords="offset points",
        horizontalalignment="center" if dx == 0 else ("left" if dx > 0 else "right"),
        verticalalignment="center" if dy == 0 else ("bottom" if dy > 0 else "top"),
        fontsize=9,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
    )


def _draw_line(axes: Axes, row: Tradeoff, place: tuple[int, int]) -> None:
    axes.annotate(
        "",
        xy=(row.kept_bytes, row.relative_time),
        xytext=place,
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.7},
    )
