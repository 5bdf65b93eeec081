"""Places of boxes and ways of arrows, for random diagrams of many forms."""

import random
from itertools import combinations, pairwise

import pytest

from rnnscan.graph.draw.layout import layout
from rnnscan.graph.draw.layout.coordinates import apart
from rnnscan.graph.draw.layout.diagram import Arrow, Box, Diagram
from rnnscan.graph.draw.layout.layers import layered
from rnnscan.graph.draw.layout.order import crossings, order
from rnnscan.graph.draw.svg import controls


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def random_diagram(seed, count=30):
    """Boxes of all sizes, one without arrows, values with several readers, and boxes with several values."""
    rng = random.Random(seed)
    boxes = tuple(Box(f"n{index}", "x") for index in range(count))
    reach = rng.choice([3, 8, count])
    arrows = {}
    for target in range(1, count - 1):
        for _ in range(rng.randint(0, 3)):
            source = rng.randint(max(0, target - reach), target - 1)
            value = f"n{source}.{rng.randint(0, 2)}"
            arrows[source, target, value] = Arrow(f"n{source}", f"n{target}", value)
    sizes = {box.id: (rng.uniform(30, 250), rng.uniform(20, 60)) for box in boxes}
    return Diagram(boxes, tuple(arrows.values())), sizes


def points_of(way, *, turned, steps=12):
    """Points along a way: straight pieces and Bezier curves in turn."""
    for index, (start, end) in enumerate(pairwise(way)):
        inner = (start, end) if index % 2 == 0 else controls(start, end, turned=turned)
        for step in range(steps + 1):
            t = step / steps
            weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
            yield tuple(sum(w * p[axis] for w, p in zip(weights, (start, *inner, end), strict=True)) for axis in (0, 1))


def inside(point, box, slack=1e-6):
    x, y = point
    return box.x + slack < x < box.x + box.width - slack and box.y + slack < y < box.y + box.height - slack


@pytest.mark.parametrize("direction", ["down", "right"])
@pytest.mark.parametrize("seed", range(4))
def test_boxes_are_apart_and_arrows_pass_no_third_box(seed, direction):
    diagram, sizes = random_diagram(seed)
    placed = layout(diagram, sizes, direction)
    for one, other in combinations(placed.boxes.values(), 2):
        across = one.x + one.width <= other.x + 1e-6 or other.x + other.width <= one.x + 1e-6
        along = one.y + one.height <= other.y + 1e-6 or other.y + other.height <= one.y + 1e-6
        assert across or along
    assert len(placed.ways) == len(diagram.arrows)
    for arrow, way in zip(diagram.arrows, placed.ways, strict=True):
        for point in points_of(way, turned=direction == "right"):
            assert not any(inside(point, box) for box in placed.boxes.values())
            assert point == pytest.approx((min(max(point[0], 0), placed.width), min(max(point[1], 0), placed.height)))
        source, target = placed.boxes[arrow.source], placed.boxes[arrow.target]
        (x0, y0), (x1, y1) = way[0], way[-1]
        if direction == "down":
            assert (y0, y1) == pytest.approx((source.y + source.height, target.y))
            assert source.x < x0 < source.x + source.width
            assert target.x < x1 < target.x + target.width
        else:
            assert (x0, x1) == pytest.approx((source.x + source.width, target.x))
            assert source.y < y0 < source.y + source.height
            assert target.y < y1 < target.y + target.height


@pytest.mark.parametrize("seed", range(4))
def test_ordering_leaves_fewer_crossings_by_a_plain_count(seed):
    diagram, _ = random_diagram(seed)
    found = layered(diagram)

    def count():
        place = {vertex: index for layer in found.layers for index, vertex in enumerate(layer)}
        pairs = [(one, other) for one in range(len(found.layer)) for other in found.after[one]]
        crossed = [
            (a, b)
            for a, b in combinations(pairs, 2)
            if found.layer[a[0]] == found.layer[b[0]] and (place[a[0]] - place[b[0]]) * (place[a[1]] - place[b[1]]) < 0
        ]
        assert crossings(found, [place[vertex] for vertex in range(len(found.layer))]) == len(crossed)
        return len(crossed)

    before = count()
    order(found)
    assert count() <= before
    assert sorted(vertex for layer in found.layers for vertex in layer) == list(range(len(found.layer)))


def test_arrows_of_one_value_share_their_way():
    boxes = tuple(Box(name, name) for name in ("x", "a", "b", "c"))
    arrows = (Arrow("x", "a", "x.0"), Arrow("a", "b", "a.0"), Arrow("b", "c", "b.0"), Arrow("x", "c", "x.0"))
    diagram = Diagram(boxes, (*arrows, Arrow("x", "b", "x.0")))
    found = layered(diagram)
    assert found.routes[3][1:2] == found.routes[4][1:2]
    assert found.layer == [0, 1, 2, 3, 1, 2]


def test_a_chain_is_drawn_in_a_line_with_its_parameters_beside_it():
    boxes = [Box("x", "x")]
    arrows = []
    for index in range(20):
        boxes += [Box(f"p{index}", "p"), Box(f"n{index}", "n")]
        before = f"n{index - 1}" if index else "x"
        arrows += [Arrow(before, f"n{index}", before), Arrow(f"p{index}", f"n{index}", f"p{index}")]
    diagram = Diagram((*boxes, Box("y", "y")), (*arrows, Arrow("n19", "y", "n19")))
    placed = layout(diagram, {box.id: (60.0, 30.0) for box in diagram.boxes}, "down")
    middles = [placed.boxes[f"n{index}"].x for index in range(20)]
    assert max(middles) - min(middles) < 1
    assert placed.width < 300


def test_positions_apart_are_the_nearest_that_keep_order_and_gaps():
    rng = random.Random(0)
    for _ in range(20):
        count = rng.randint(1, 6)
        wanted = [rng.uniform(-5, 5) for _ in range(count)]
        weights = [rng.uniform(0.1, 3) for _ in range(count)]
        gaps = [rng.uniform(0, 3) for _ in range(count - 1)]
        found = apart(wanted, weights, gaps)
        assert all(b - a >= gap - 1e-9 for a, b, gap in zip(found, found[1:], gaps, strict=False))

        def cost(positions, wanted=wanted, weights=weights):
            return sum(w * (p - q) ** 2 for p, q, w in zip(positions, wanted, weights, strict=True))

        # Moving any run of neighbors either way makes it worse, or breaks a gap.
        for start, end in combinations(range(count + 1), 2):
            for step in (-1e-4, 1e-4):
                moved = [p + step * (start <= index < end) for index, p in enumerate(found)]
                if all(b - a >= gap - 1e-9 for a, b, gap in zip(moved, moved[1:], gaps, strict=False)):
                    assert cost(moved) >= cost(found) - 1e-9


def test_an_empty_diagram_has_a_layout():
    placed = layout(Diagram((), ()), {}, "down")
    assert (placed.width, placed.height) == (0.0, 0.0)
