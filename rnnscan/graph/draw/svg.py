"""A scene as SVG, without a system package: text with fixed places, the same bytes in every run."""

from collections.abc import Iterator, Sequence
from html import escape

from rnnscan.graph.draw.layout.diagram import Arrow, Box
from rnnscan.graph.draw.scene import Frame, Part, Scene, Shape, Way, Words
from rnnscan.graph.draw.text import FONT


def to_svg(scene: Scene) -> str:
    """The scene as an SVG document.

    Args:
        scene: the scene.
    """
    width, height = _number(scene.width), _number(scene.height)
    label = escape(scene.title or "graph")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{label}" font-family="{FONT}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for part in scene.parts:
        lines += _part(part)
    return "\n".join([*lines, "</svg>", ""])


def _part(part: Part) -> Iterator[str]:
    yield f"<g{_attributes(part)}>" + (f"<title>{escape(part.tooltip)}</title>" if part.tooltip else "")
    for shape in part.shapes:
        yield _shape(shape)
    yield "</g>"


def _attributes(part: Part) -> str:
    """What a part shows, for programs that read the picture."""
    if isinstance(part.of, Box):
        attributes = {"box": part.of.id, "kind": part.of.kind}
    elif isinstance(part.of, Arrow):
        arrow = part.of
        attributes = {
            "source": arrow.source,
            "target": arrow.target,
            "value": arrow.value,
            "keeping": arrow.keeping,
        }
    else:
        attributes = {}
    return "".join(f' data-{name}="{escape(value)}"' for name, value in attributes.items() if value)


def _shape(shape: Shape) -> str:
    if isinstance(shape, Frame):
        at = shape.place
        corner = f'x="{_number(at.x)}" y="{_number(at.y)}" width="{_number(at.width)}" height="{_number(at.height)}"'
        border = f'fill="{shape.color.fill}" stroke="{shape.color.line}" stroke-width="{_number(shape.border)}"'
        return f'<rect {corner} rx="{_number(shape.radius)}" {border}/>'
    if isinstance(shape, Words):
        anchor = ' text-anchor="middle"' if shape.centered else ""
        weight = ' font-weight="bold"' if shape.bold else ""
        place = f'x="{_number(shape.x)}" y="{_number(shape.y)}" font-size="{_number(shape.size)}"'
        return f'<text {place} fill="{shape.color}"{anchor}{weight}>{escape(shape.text)}</text>'
    return _way(shape)


def _way(way: Way) -> str:
    dashes = f' stroke-dasharray="{" ".join(map(str, way.line.dashes))}"' if way.line.dashes else ""
    stroke = f'stroke="{way.line.color}" stroke-width="{_number(way.line.width)}"'
    head = f'<path d="M{_points(way.head)}Z" fill="{way.line.color}"/>' if way.head else ""
    return f'<path d="{path_of(way)}" fill="none" {stroke}{dashes}/>{head}'


def path_of(way: Way) -> str:
    """The commands of a line: straight through a layer, in a curve from layer to layer."""
    commands = [f"M{_points(way.points[:1])}"]
    for index, (start, end) in enumerate(zip(way.points, way.points[1:], strict=False)):
        if index % 2 == 0:
            commands.append(f"L{_points([end])}")
        else:
            commands.append(f"C{_points([*controls(start, end, turned=way.turned), end])}")
    return "".join(commands)


def controls(
    start: tuple[float, float], end: tuple[float, float], *, turned: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The control points of a curve that begins and ends in the direction of the layers."""
    if turned:
        middle = (start[0] + end[0]) / 2
        return (middle, start[1]), (middle, end[1])
    middle = (start[1] + end[1]) / 2
    return (start[0], middle), (end[0], middle)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)} {_number(y)}" for x, y in points)


def _number(value: float) -> str:
    """With one decimal, and none where it is zero."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
