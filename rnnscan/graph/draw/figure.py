"""A scene as a figure of matplotlib, for formats such as PNG and PDF. It needs the extra `plot`."""

from typing import Any

from rnnscan.graph.draw.scene import Frame, Scene, Shape, Words
from rnnscan.graph.draw.svg import controls


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
    from matplotlib.path import Path
except ModuleNotFoundError as error:
    raise ImportError(
        f"draw: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan, or save the picture as SVG.'
    ) from error


DPI = 100


def to_figure(scene: Scene) -> Figure:
    """The scene as a figure, one pixel of the scene for one of a hundred in an inch.

    Args:
        scene: the scene.
    """
    figure = Figure(figsize=(scene.width / DPI, scene.height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.axis("off")
    for order, part in enumerate(scene.parts):
        for shape in part.shapes:
            _draw(axes, shape, order)
    return figure


def known_endings() -> list[str]:
    """The endings of files that matplotlib writes, SVG aside."""
    return [f".{ending}" for ending in sorted(Figure().canvas.get_supported_filetypes()) if ending != "svg"]


def _draw(axes: Axes, shape: Shape, order: int) -> None:
    if isinstance(shape, Frame):
        at, radius = shape.place, shape.radius
        axes.add_patch(
            FancyBboxPatch(
                (at.x, at.y),
                at.width,
                at.height,
                boxstyle=f"round,pad=0,rounding_size={radius}",
                facecolor=shape.color.fill,
                edgecolor=shape.color.line,
                linewidth=_points(shape.border),
                zorder=order,
            )
        )
    elif isinstance(shape, Words):
        look: dict[str, Any] = {"ha": "center" if shape.centered else "left", "color": shape.color, "zorder": order}
        weight = "bold" if shape.bold else "normal"
        text = shape.text.replace("$", r"\$")  # Else matplotlib reads mathematics.
        axes.text(shape.x, shape.y, text, fontsize=_points(shape.size), weight=weight, va="baseline", **look)
    else:
        codes, vertices = [Path.MOVETO], [shape.points[0]]
        for index, (start, end) in enumerate(zip(shape.points, shape.points[1:], strict=False)):
            if index % 2 == 0:
                codes, vertices = [*codes, Path.LINETO], [*vertices, end]
            else:
                codes = [*codes, *[Path.CURVE4] * 3]
                vertices = [*vertices, *controls(start, end, turned=shape.turned), end]
        dashes: Any = (0, tuple(_points(float(dash)) for dash in shape.line.dashes)) if shape.line.dashes else "-"
        look = {"color": shape.line.color, "zorder": order}
        path = Path(vertices, codes)
        axes.add_patch(PathPatch(path, fill=False, lw=_points(shape.line.width), ls=dashes, **look))
        if shape.head:
            axes.add_patch(Polygon(shape.head, closed=True, linewidth=0, **look))


def _points(pixels: float) -> float:
    return pixels * 72 / DPI
