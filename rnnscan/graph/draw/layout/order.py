"""The order of vertices within layers, with few crossings."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from rnnscan.graph.draw.layout.layers import Layered


SWEEPS = 16


def order(graph: Layered) -> None:
    """Order the vertices of each layer so that few arrows cross.

    Each sweep sorts every layer by the middle of its neighbors in the layer before, or after, and then swaps
    neighbors while that removes crossings. The best order of all sweeps stays.

    Source: Gansner, Koutsofios, North and Vo 1993, "A Technique for Drawing Directed Graphs", section 3.

    Args:
        graph: the vertices in layers, which is changed.
    """
    place = [0] * len(graph.layer)
    _number(graph, place)
    best, fewest = [layer[:] for layer in graph.layers], crossings(graph, place)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        forward = sweep % 2 == 0
        neighbors = graph.before if forward else graph.after
        for layer in graph.layers if forward else reversed(graph.layers):
            _sort(layer, neighbors, place, to_the_right=sweep % 4 < 2)
        _swap_neighbors(graph, place)
        count = crossings(graph, place)
        if count < fewest:
            best, fewest = [layer[:] for layer in graph.layers], count
    graph.layers[:] = best


def crossings(graph: Layered, place: Sequence[int]) -> int:
    """The number of pairs of lines that cross, given the place of each vertex in its layer.

    Source: Barth, Juenger and Mutzel 2002, "Simple and Efficient Bilayer Cross Counting".
    """
    count = 0
    for layer in graph.layers:
        seen: list[int] = []
        for vertex in layer:
            ends = sorted(place[other] for other in graph.after[vertex])
            count += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _number(graph: Layered, place: list[int]) -> None:
    for layer in graph.layers:
        for index, vertex in enumerate(layer):
            place[vertex] = index


def _sort(layer: list[int], neighbors: list[list[int]], place: list[int], *, to_the_right: bool) -> None:
    """Sort a layer by the middle of each vertex's neighbors. Vertices without neighbors keep their places."""
    middle = {}
    for vertex in layer:
        places = sorted(place[other] for other in neighbors[vertex])
        if places:
            half = len(places) // 2
            middle[vertex] = places[half] if len(places) % 2 else (places[half - 1] + places[half]) / 2
    # Ties are broken one way and then the other, so that sweeps can leave a local minimum.
    tie = 1 if to_the_right else -1
    moving = iter(sorted((v for v in layer if v in middle), key=lambda v: (middle[v], tie * place[v])))
    layer[:] = [next(moving) if vertex in middle else vertex for vertex in layer]
    for index, vertex in enumerate(layer):
        place[vertex] = index


def _swap_neighbors(graph: Layered, place: list[int]) -> None:
    """Swap vertices that are side by side while that removes crossings."""
    for layer in graph.layers:
        improved = len(layer) > 1
        rounds = 0
        while improved and rounds < 8:
            improved, rounds = False, rounds + 1
            for index in range(len(layer) - 1):
                left, right = layer[index], layer[index + 1]
                gain = 0
                for neighbors in (graph.before, graph.after):
                    gain += _inversions(neighbors[left], neighbors[right], place)
                if gain > 0:
                    layer[index], layer[index + 1] = right, left
                    place[left], place[right] = index + 1, index
                    improved = True


def _inversions(left: Sequence[int], right: Sequence[int], place: Sequence[int]) -> int:
    """The crossings that go when `left` and `right` are swapped, less those that come."""
    gain = 0
    for one in left:
        for other in right:
            gain += (place[one] > place[other]) - (place[one] < place[other])
    return gain
