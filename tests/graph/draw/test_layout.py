"""Places of boxes and ways of arrows, for random diagrams of many forms."""

import random
from itertools import combinations

import pytest

from rnnscan.graph.draw import Picture
from rnnscan.graph.draw.diagram import Arrow, Box, Diagram
from svg_parts import extent, line_and_head, parts


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def random_diagram(seed, count=30):
    """Boxes of all sizes, one without arrows, values with several readers, and boxes with several values."""
    rng = random.Random(seed)
    boxes = tuple(
        Box(
            f"n{index}", "x" * rng.randint(1, 30), ("note",) * rng.randint(0, 3), role=rng.choice(["argument", "group"])
        )
        for index in range(count)
    )
    reach = rng.choice([3, 8, count])
    arrows = {}
    for target in range(1, count - 1):
        for _ in range(rng.randint(0, 3)):
            source = rng.randint(max(0, target - reach), target - 1)
            value = f"n{source}.{rng.randint(0, 2)}"
            arrows[source, target, value] = Arrow(f"n{source}", f"n{target}", value)
    return Diagram(boxes, tuple(arrows.values()))


def points_along(curve, steps=12):
    """Points along Bezier curves, each of which begins where the one before it ends."""
    for first in range(0, len(curve) - 1, 3):
        for step in range(steps + 1):
            t = step / steps
            weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
            piece = curve[first : first + 4]
            yield tuple(sum(w * point[axis] for w, point in zip(weights, piece, strict=True)) for axis in (0, 1))


def distance(point, box):
    """The distance of a point to the border of a box; below zero within it."""
    x, y = point
    left, upper, right, lower = box
    return max(left - x, x - right, upper - y, y - lower)


@pytest.mark.parametrize("direction", ["down", "right"])
@pytest.mark.parametrize("seed", range(4))
def test_boxes_are_apart_and_arrows_join_their_boxes_and_pass_no_third(seed, direction):
    diagram = random_diagram(seed)
    picture = Picture(diagram, direction=direction)
    boxes, arrows = parts(picture.text)
    extents = {name: extent(box) for name, box in boxes.items()}
    assert {*extents} == {box.id for box in diagram.boxes}
    for (left, upper, right, lower), (x0, y0, x1, y1) in combinations(extents.values(), 2):
        assert right <= x0 or x1 <= left or lower <= y0 or y1 <= upper
    assert sorted(pair for *pair, _ in arrows) == sorted([arrow.source, arrow.target] for arrow in diagram.arrows)
    axis = 1 if direction == "down" else 0
    for source, target, arrow in arrows:
        assert extents[source][axis + 2] < extents[target][axis]
        line, head = line_and_head(arrow)
        # The border is 2 points wide, and an arrow may end at a round corner.
        assert abs(distance(line[0], extents[source])) < 3
        assert min(abs(distance(point, extents[target])) for point in head) < 3
        others = [place for name, place in extents.items() if name not in (source, target)]
        assert all(distance(point, place) > -1 for point in points_along(line) for place in others)
    assert Picture(random_diagram(seed), direction=direction).text == picture.text


def test_a_chain_is_drawn_in_a_line_with_its_parameters_beside_it():
    boxes = [Box("x", "x", role="argument")]
    arrows = []
    for index in range(20):
        boxes += [Box(f"p{index}", "parameter", role="argument"), Box(f"n{index}", "operation")]
        before = f"n{index - 1}" if index else "x"
        arrows += [Arrow(before, f"n{index}", before), Arrow(f"p{index}", f"n{index}", f"p{index}")]
    diagram = Diagram((*boxes, Box("y", "y", role="result")), (*arrows, Arrow("n19", "y", "n19")))
    extents = {name: extent(box) for name, box in parts(Picture(diagram).text)[0].items()}
    middles = [(extents[f"n{index}"][0] + extents[f"n{index}"][2]) / 2 for index in range(20)]
    assert max(middles) - min(middles) < 1
    assert max(right for _, _, right, _ in extents.values()) - min(left for left, *_ in extents.values()) < 300


def test_an_empty_diagram_has_a_picture():
    assert parts(Picture(Diagram((), ())).text) == ({}, [])
