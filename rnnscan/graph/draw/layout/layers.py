"""Layers of a diagram: every arrow leads to a later layer, and long arrows pass through bends."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rnnscan.graph.draw.layout.diagram import Arrow, Diagram


SWEEPS = 4


@dataclass
class Layered:
    """Vertices in layers: first the boxes, in their order, then the bends of long arrows.

    Attributes:
        boxes: the number of boxes.
        layer: the layer of each vertex.
        before: the neighbors of each vertex in the layer before its own.
        after: those in the layer after it.
        routes: the vertices that each arrow passes, its boxes included. Arrows of one value share bends.
        layers: the vertices of each layer, in order.
    """

    boxes: int
    layer: list[int]
    before: list[list[int]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    routes: list[list[int]] = field(default_factory=list)
    layers: list[list[int]] = field(default_factory=list)

    def chains(self) -> Iterator[tuple[int, list[int], int]]:
        """The box, the bends and the last reader of each value that passes through layers."""
        longest: dict[int, list[int]] = {}
        for route in self.routes:
            if len(route) > 2 and len(route) > len(longest.get(route[1], [])):
                longest[route[1]] = route
        for route in longest.values():
            yield route[0], route[1:-1], route[-1]

    def is_bend(self, vertex: int) -> bool:
        """Whether a vertex is the bend of an arrow."""
        return vertex >= self.boxes

    def ends(self) -> list[bool]:
        """Of each vertex, whether it is an argument or a result, or a bend on the way from an argument."""
        is_end = [not self.before[vertex] or not self.after[vertex] for vertex in range(len(self.layer))]
        for source, bends, _ in self.chains():
            for bend in bends:
                is_end[bend] = not self.before[source]
        return is_end


def layered(diagram: Diagram) -> Layered:
    """Put boxes in layers, and bends where an arrow crosses a layer.

    Source: the layers and bends are those of Sugiyama, Tagawa and Toda 1981, "Methods for Visual Understanding of
    Hierarchical System Structures".

    Args:
        diagram: the diagram.
    """
    number = {box.id: index for index, box in enumerate(diagram.boxes)}
    graph = Layered(len(diagram.boxes), _ranks(diagram, number))
    bends: dict[tuple[str, str], list[int]] = defaultdict(list)
    for arrow in diagram.arrows:
        source, target = number[arrow.source], number[arrow.target]
        shared = bends[arrow.source, arrow.value]
        steps = graph.layer[target] - graph.layer[source] - 1
        while len(shared) < steps:
            graph.layer.append(graph.layer[source] + 1 + len(shared))
            shared.append(len(graph.layer) - 1)
        graph.routes.append([source, *shared[:steps], target])
    count = len(graph.layer)
    graph.before, graph.after = [[] for _ in range(count)], [[] for _ in range(count)]
    segments = dict.fromkeys(pair for route in graph.routes for pair in pairwise(route))
    for upper, lower in segments:
        graph.after[upper].append(lower)
        graph.before[lower].append(upper)
    graph.layers = [[] for _ in range(max(graph.layer, default=-1) + 1)]
    for vertex in _by_first_reading(graph):
        graph.layers[graph.layer[vertex]].append(vertex)
    return graph


def _ranks(diagram: Diagram, number: Mapping[str, int]) -> list[int]:
    """The layer of each box: the longest path to it, then later if that makes its arrows shorter."""
    into: list[list[Arrow]] = [[] for _ in diagram.boxes]
    out: list[list[Arrow]] = [[] for _ in diagram.boxes]
    for arrow in diagram.arrows:
        into[number[arrow.target]].append(arrow)
        out[number[arrow.source]].append(arrow)
    ranks = [0] * len(diagram.boxes)
    for index, arrows in enumerate(into):  # Arrows go forward, so the sources have their layers.
        ranks[index] = max((ranks[number[arrow.source]] + 1 for arrow in arrows), default=0)
    readers = Counter((arrow.source, arrow.value) for arrow in diagram.arrows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for index in reversed(range(len(ranks))) if down else range(len(ranks)):
            # A step down makes each value that is made here shorter, and each that is read here alone longer. Ties go
            # down and then up again, so that the boxes of a chain move together.
            written = len({arrow.value for arrow in out[index]})
            read = sum(readers[arrow.source, arrow.value] == 1 for arrow in into[index])
            if down and out[index] and written >= read:
                ranks[index] = min(ranks[number[arrow.target]] for arrow in out[index]) - 1
            elif not down and into[index] and read >= written:
                ranks[index] = max(ranks[number[arrow.source]] for arrow in into[index]) + 1
    return ranks


def _by_first_reading(graph: Layered) -> Sequence[int]:
    """All vertices, neighbors near each other: in the order of a search in depth from the last box backward."""
    order: list[int] = []
    seen = [False] * len(graph.layer)
    for root in sorted(range(graph.boxes), key=lambda vertex: (-graph.layer[vertex], vertex)):
        waiting = [root]
        while waiting:
            vertex = waiting.pop()
            if not seen[vertex]:
                seen[vertex] = True
                order.append(vertex)
                waiting += reversed(graph.before[vertex])
    return order
