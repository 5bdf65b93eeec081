"""The positions of vertices across the layers: near their neighbors, in order, and apart."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from rnnscan.graph.draw.layout.layers import Layered


SWEEPS = 24
# How much an arrow pulls its ends together. Bends pull most, so that long arrows are straight. Arguments and results
# pull least, so that the others stay in line.
PULL_OF_BENDS, PULL_OF_BEND, PULL, PULL_OF_END = 8.0, 2.0, 1.0, 0.004
# Boxes that are nearer than this to the line of their only neighbor are moved onto it.
NEAR = 24.0


def positions(graph: Layered, gap: Callable[[int, int], float]) -> list[float]:
    """The middle of each vertex across the layers.

    It makes the squared lengths of the arrows across the layers small, one layer after the other. Within a layer the
    best positions are found exactly.

    Args:
        graph: the vertices in layers, in order.
        gap: the least distance between the middles of two neighbors in a layer.
    """
    gaps = [[gap(*pair) for pair in pairwise(layer)] for layer in graph.layers]
    middle, ends = [0.0] * len(graph.layer), graph.ends()
    for layer, between in zip(graph.layers, gaps, strict=True):
        offset = -sum(between) / 2
        for index, vertex in enumerate(layer):
            middle[vertex] = offset
            offset += between[index] if index < len(between) else 0.0
    for sweep in range(SWEEPS):
        sides = (graph.before, graph.after)
        # The first sweeps look one way alone, so that positions spread fast; the last ones look both ways.
        looking = [sides[sweep % 2]] if sweep < SWEEPS // 2 else [*sides]
        numbers = range(len(graph.layers))
        for number in numbers if sweep % 2 == 0 else reversed(numbers):
            _place(graph, graph.layers[number], gaps[number], middle, looking, ends)
    _straighten(graph, gap, middle, ends)
    return middle


def _place(
    graph: Layered,
    layer: list[int],
    gaps: Sequence[float],
    middle: list[float],
    looking: Sequence[list[list[int]]],
    ends: Sequence[bool],
) -> None:
    wanted, weights = [], []
    for vertex in layer:
        weight, moment = 1e-4, 1e-4 * middle[vertex]
        for neighbors in looking:
            for other in neighbors[vertex]:
                bends = graph.is_bend(vertex) + graph.is_bend(other)
                pull = PULL_OF_END if ends[vertex] != ends[other] else (PULL, PULL_OF_BEND, PULL_OF_BENDS)[bends]
                weight += pull
                moment += pull * middle[other]
        wanted.append(moment / weight)
        weights.append(weight)
    for vertex, position in zip(layer, apart(wanted, weights, gaps), strict=True):
        middle[vertex] = position


def _straighten(graph: Layered, gap: Callable[[int, int], float], middle: list[float], ends: Sequence[bool]) -> None:
    """Put the bends of an arrow on as few lines as their neighbors allow, and boxes on the line of an only neighbor.

    Arguments and results do not count as neighbors. Only free space is used, so the order and the gaps stay.
    """
    place = {vertex: (layer, index) for layer in graph.layers for index, vertex in enumerate(layer)}

    def free(vertex: int) -> tuple[float, float]:
        layer, index = place[vertex]
        least = middle[layer[index - 1]] + gap(layer[index - 1], vertex) if index else -float("inf")
        rest = layer[index + 1 : index + 2]
        return least, min((middle[other] - gap(vertex, other) for other in rest), default=float("inf"))

    for _ in range(3):
        for source, bends, target in graph.chains():
            for run, least, most in _runs(bends, free):
                lines = [middle[end] for end in (source, target) if least <= middle[end] <= most]
                mean = sum(middle[bend] for bend in run) / len(run)
                for bend in run:
                    middle[bend] = (
                        min(lines, key=lambda line: abs(line - mean)) if lines else min(max(mean, least), most)
                    )
        for neighbors in (graph.before, graph.after):
            for vertex in range(graph.boxes):
                least, most = free(vertex)
                inner = [other for other in neighbors[vertex] if not ends[other]] or neighbors[vertex]
                line = middle[inner[0]] if len(inner) == 1 else middle[vertex]
                if abs(line - middle[vertex]) < NEAR and least <= line <= most:
                    middle[vertex] = line


def _runs(bends: Sequence[int], free: Callable[[int], tuple[float, float]]) -> Iterator[tuple[list[int], float, float]]:
    """The bends of an arrow in runs that fit on one line, each with the space for it."""
    run: list[int] = []
    least, most = -float("inf"), float("inf")
    for bend in bends:
        low, high = free(bend)
        if run and max(least, low) > min(most, high):
            yield run, least, most
            run, least, most = [], -float("inf"), float("inf")
        run.append(bend)
        least, most = max(least, low), min(most, high)
    if run:
        yield run, least, most


def apart(wanted: Sequence[float], weights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The positions nearest to the wanted ones, in the same order and with gaps between them.

    Source: with the gaps taken off this is isotonic regression by pooling adjacent violators, Ayer et al. 1955, "An
    Empirical Distribution Function for Sampling with Incomplete Information".

    Args:
        wanted: the wanted positions.
        weights: how much each counts, by the square of its distance.
        gaps: the least distance between neighbors.

    Example:
        >>> apart([0.0, 0.0, 9.0], [1.0, 1.0, 1.0], [2.0, 2.0])
        [-1.0, 1.0, 9.0]
    """
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    pools: list[tuple[float, float, int]] = []  # Mean, weight and number of members.
    for position, weight, offset in zip(wanted, weights, offsets, strict=False):
        mean, total, count = position - offset, weight, 1
        while pools and pools[-1][0] > mean:
            other, heavy, members = pools.pop()
            mean = (mean * total + other * heavy) / (total + heavy)
            total, count = total + heavy, count + members
        pools.append((mean, total, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]
