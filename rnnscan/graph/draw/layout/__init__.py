"""layout(): places of boxes and ways of arrows, so that no boxes overlap and no arrow passes through a third box."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnnscan.graph.draw.layout.coordinates import positions
from rnnscan.graph.draw.layout.diagram import Arrow, Diagram
from rnnscan.graph.draw.layout.layers import Layered, layered
from rnnscan.graph.draw.layout.order import order


# In pixels: between boxes, between an arrow and its neighbors, between layers, and between the ends of arrows.
BOX_GAP, ARROW_GAP, LAYER_GAP, PORT_GAP = 18.0, 10.0, 30.0, 14.0
# Layers move apart by this part of the longest way across, up to a limit, so that no arrow is nearly flat.
SLOPE, MOST_SLOPE = 0.1, 70.0


@dataclass(frozen=True)
class Rectangle:
    """A place: its corner, width and height."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Where a diagram is drawn.

    Attributes:
        boxes: id of a box -> its place.
        ways: for each arrow, the points that it passes. From a point with an even number it goes straight to the next,
            along the layers' direction, and from an odd one in a curve that begins and ends in that direction.
        width: the width of the whole.
        height: its height.
    """

    boxes: Mapping[str, Rectangle]
    ways: Sequence[Sequence[tuple[float, float]]]
    width: float
    height: float


def layout(diagram: Diagram, sizes: Mapping[str, tuple[float, float]], direction: str) -> Layout:
    """Lay out a diagram.

    Args:
        diagram: the diagram.
        sizes: id of a box -> its width and height.
        direction: "down", or "right".
    """
    graph = layered(diagram)
    order(graph)
    turned = direction == "right"
    across = [sizes[box.id][turned] for box in diagram.boxes] + [0.0] * (len(graph.layer) - graph.boxes)
    along = [sizes[box.id][not turned] for box in diagram.boxes] + [0.0] * (len(graph.layer) - graph.boxes)

    def gap(left: int, right: int) -> float:
        some_bend = graph.is_bend(left) or graph.is_bend(right)
        return (across[left] + across[right]) / 2 + (ARROW_GAP if some_bend else BOX_GAP)

    middle = positions(graph, gap)
    start = min((middle[vertex] - across[vertex] / 2 for vertex in range(len(middle))), default=0.0)
    middle = [position - start for position in middle]
    bands = _bands(graph, along, middle)
    places = [
        (middle[v] - across[v] / 2, sum(bands[graph.layer[v]]) / 2 - along[v] / 2, across[v], along[v])
        for v in range(graph.boxes)
    ]
    ways = _ways(diagram.arrows, graph, bands, middle, places)
    width = max((x + w for x, _, w, _ in places), default=0.0)
    width = max([width, *(x for way in ways for x, _ in way)])
    height = bands[-1][1] if bands else 0.0
    if turned:
        places = [(y, x, h, w) for x, y, w, h in places]
        ways = [[(y, x) for x, y in way] for way in ways]
        width, height = height, width
    rectangles = [Rectangle(*place) for place in places]
    return Layout(
        {box.id: rectangle for box, rectangle in zip(diagram.boxes, rectangles, strict=True)}, ways, width, height
    )


def _bands(graph: Layered, along: Sequence[float], middle: Sequence[float]) -> list[tuple[float, float]]:
    """The start and end of each layer."""
    bands: list[tuple[float, float]] = []
    start = 0.0
    for layer in graph.layers:
        end = start + max(along[vertex] for vertex in layer)
        bands.append((start, end))
        reach = max((abs(middle[one] - middle[other]) for one in layer for other in graph.after[one]), default=0.0)
        start = end + LAYER_GAP + min(MOST_SLOPE, SLOPE * reach)
    return bands


def _ways(
    arrows: Sequence[Arrow],
    graph: Layered,
    bands: Sequence[tuple[float, float]],
    middle: Sequence[float],
    places: Sequence[tuple[float, float, float, float]],
) -> list[list[tuple[float, float]]]:
    """The points of each arrow. It passes a layer straight, and bends between layers, where no box is."""
    leaving, arriving = _ports(arrows, graph, middle, places)
    ways = []
    for number, (arrow, route) in enumerate(zip(arrows, graph.routes, strict=True)):
        first, last = route[0], route[-1]
        x = leaving[first, arrow.value]
        way = [(x, places[first][1] + places[first][3]), (x, bands[graph.layer[first]][1])]
        for bend in route[1:-1]:
            way += [(middle[bend], edge) for edge in bands[graph.layer[bend]]]
        x = arriving[number]
        ways.append([*way, (x, bands[graph.layer[last]][0]), (x, places[last][1])])
    return ways


def _ports(
    arrows: Sequence[Arrow],
    graph: Layered,
    middle: Sequence[float],
    places: Sequence[tuple[float, float, float, float]],
) -> tuple[dict[tuple[int, str], float], dict[int, float]]:
    """Where values leave their boxes, and where arrows arrive: side by side, in the order of their other ends."""
    targets: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    into: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for number, (arrow, route) in enumerate(zip(arrows, graph.routes, strict=True)):
        targets[route[0]][arrow.value].append(middle[route[1]])
        into[route[-1]].append((middle[route[-2]], number))
    leaving = {}
    for vertex, values in targets.items():
        ends = sorted((sum(ends) / len(ends), value) for value, ends in values.items())
        for position, (_, value) in zip(_spread(middle[vertex], places[vertex][2], len(ends)), ends, strict=True):
            leaving[vertex, value] = position
    arriving = {}
    for vertex, starts in into.items():
        for position, (_, number) in zip(
            _spread(middle[vertex], places[vertex][2], len(starts)), sorted(starts), strict=True
        ):
            arriving[number] = position
    return leaving, arriving


def _spread(middle: float, size: float, count: int) -> list[float]:
    gap = min(PORT_GAP, (size - 12) / count)
    return [middle + (index - (count - 1) / 2) * gap for index in range(count)]
