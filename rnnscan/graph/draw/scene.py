"""Scene: a diagram as shapes with places and colors, which SVG and matplotlib draw alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rnnscan.graph.draw.colors import END, KINDS, LINES, Color, Line, color_of, line_of
from rnnscan.graph.draw.layout import Layout, Rectangle, layout
from rnnscan.graph.draw.layout.diagram import Arrow, Box, Diagram
from rnnscan.graph.draw.text import printable, shortened, width_of


# Sizes in pixels.
TEXT, NOTE, TITLE = 13.0, 10.0, 14.0
INK, FAINT = "#1b1f24", "#4a5460"
MARGIN, PADDING, HEAD = 16.0, 9.0, 7.0
LEGEND_ROW, LEAST_WIDTH, MOST_LEGEND = 20.0, 300.0, 900.0


@dataclass(frozen=True)
class Frame:
    """A rectangle with round corners."""

    place: Rectangle
    color: Color
    border: float
    radius: float


@dataclass(frozen=True)
class Words:
    """A line of text. `x` is its middle, or its start if it is not centered; `y` is its baseline."""

    text: str
    x: float
    y: float
    size: float
    color: str = INK
    bold: bool = False
    centered: bool = True


@dataclass(frozen=True)
class Way:
    """A line through points, as in `Layout.ways`, and its head if it has one."""

    points: tuple[tuple[float, float], ...]
    line: Line
    head: tuple[tuple[float, float], ...] = ()
    turned: bool = False


Shape: TypeAlias = Frame | Words | Way


@dataclass(frozen=True)
class Part:
    """Shapes that belong together.

    Attributes:
        shapes: the shapes.
        tooltip: what a reader sees who points at them.
        of: the box or arrow that they show; None for titles and legends.
    """

    shapes: tuple[Shape, ...]
    tooltip: str = ""
    of: Box | Arrow | None = None


@dataclass(frozen=True)
class Scene:
    """Parts in the order of drawing, on a page of this size."""

    parts: tuple[Part, ...]
    width: float
    height: float
    title: str


def scene_of(diagram: Diagram, direction: str, title: str) -> Scene:
    """Place a diagram on a page, with a title above and a legend below.

    Args:
        diagram: the diagram.
        direction: "down", or "right".
        title: the title, or "".
    """
    title = shortened(printable(title), 120)
    placed = layout(diagram, {box.id: _size(box) for box in diagram.boxes}, direction)
    width = max(placed.width, LEAST_WIDTH, width_of(title, TITLE) * 1.1)
    top = MARGIN + (TITLE + 12 if title else 0)
    legend, legend_height = _legend(diagram, min(max(width, LEAST_WIDTH), MOST_LEGEND), top + placed.height + 14)
    left = MARGIN + (width - placed.width) / 2
    arrows = [
        _arrow(arrow, way, left, top, turned=direction == "right")
        for arrow, way in zip(diagram.arrows, placed.ways, strict=True)
    ]
    # Kept values are drawn over others, since arrows of one value share their way.
    arrows.sort(key=lambda part: max(one.line.width for one in part.shapes if isinstance(one, Way)))
    heading = [Part((Words(title, MARGIN, MARGIN + TITLE, TITLE, bold=True, centered=False),))] if title else []
    parts = [*heading, *arrows, *(_box(box, placed, left, top) for box in diagram.boxes), *legend]
    return Scene(tuple(parts), width + 2 * MARGIN, top + placed.height + legend_height + MARGIN, title)


def _size(box: Box) -> tuple[float, float]:
    widths = [width_of(box.text, TEXT) * (1.1 if box.stands_out else 1), *(width_of(one, NOTE) for one in box.notes)]
    return max(40.0, max(widths) + 2 * PADDING), TEXT + 13 + (NOTE + 4) * len(box.notes)


def _box(box: Box, placed: Layout, left: float, top: float) -> Part:
    at = placed.boxes[box.id]
    place = Rectangle(at.x + left, at.y + top, at.width, at.height)
    color = color_of(box.kind)
    color = Color(END.fill, color.line if box.kind else END.line) if box.is_end else color
    frame = Frame(place, color, 2.0 if box.stands_out else 1.0, min(13.0, at.height / 2) if box.is_end else 4.0)
    middle, baseline = place.x + place.width / 2, place.y + TEXT + 4.5
    words = [Words(box.text, middle, baseline, TEXT, bold=box.stands_out)]
    for index, note in enumerate(box.notes):
        words.append(Words(note, middle, baseline + (index + 1) * (NOTE + 4), NOTE, FAINT))
    return Part((frame, *words), box.tooltip, box)


def _arrow(arrow: Arrow, way: Sequence[tuple[float, float]], left: float, top: float, *, turned: bool) -> Part:
    line = line_of(arrow.keeping)
    points = [(x + left, y + top) for x, y in way]
    x, y = points[-1]
    half = HEAD / 2 + line.width / 2
    if turned:
        head, points[-1] = ((x, y), (x - HEAD, y - half), (x - HEAD, y + half)), (x - HEAD, y)
    else:
        head, points[-1] = ((x, y), (x - half, y - HEAD), (x + half, y - HEAD)), (x, y - HEAD)
    return Part((Way(tuple(points), line, head, turned),), arrow.tooltip, arrow)


def _legend(diagram: Diagram, width: float, top: float) -> tuple[list[Part], float]:
    """The kinds and lines that the diagram has, in rows, and their height."""
    parts: list[Part] = []
    x, y = MARGIN, top + LEGEND_ROW
    for words, sample in _legend_entries(diagram):
        taken = 34 + width_of(words, NOTE + 1) + 18
        if x > MARGIN and x + taken > MARGIN + width:
            x, y = MARGIN, y + LEGEND_ROW
        text = Words(words, x + 34, y, NOTE + 1, FAINT, centered=False)
        if isinstance(sample, Color):
            shape: Shape = Frame(Rectangle(x + 6, y - 10, 20.0, 12.0), sample, 1.0, 3.0)
        else:
            shape = Way(((x, y - 4), (x + 28, y - 4)), sample, (), turned=True)
        parts.append(Part((shape, text)))
        x += taken
    return parts, (y - top + 8 if parts else 0.0)


def _legend_entries(diagram: Diagram) -> Iterator[tuple[str, Color | Line]]:
    worked = {box.kind for box in diagram.boxes if box.role in ("operation", "group")}
    for kind, color in KINDS.items():
        if kind in worked:
            yield color.meaning, color
    drawn = {arrow.keeping for arrow in diagram.arrows}
    for keeping, line in LINES.items():
        if keeping in drawn:
            yield line.meaning, line
