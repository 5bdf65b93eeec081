"""The boxes and arrows of a picture that Graphviz drew as SVG."""

import re
import xml.etree.ElementTree as ET


SVG = "{http://www.w3.org/2000/svg}"


def parts(svg):
    """The groups of boxes by id, and those of arrows with the ids of their ends."""
    boxes, arrows = {}, []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        kind, _, _ = group.get("class", "").partition(" ")
        name = group.findtext(f"{SVG}title")
        if kind == "node":
            assert name not in boxes
            boxes[name] = group
        elif kind == "edge":
            source, _, target = name.partition("->")
            arrows.append((source, target, group))
    return boxes, arrows


def tooltip(group):
    return group.find(f".//{SVG}a").get("{http://www.w3.org/1999/xlink}title")


def border(box):
    """The element with the border and the fill. A round one is a path."""
    return next(one for one in box.iter() if one.tag in (f"{SVG}polygon", f"{SVG}path"))


def extent(box):
    """The left, upper, right and lower ends of a box."""
    points = points_of(border(box))
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def line_and_head(arrow):
    """The control points of an arrow's Bezier curves, and the points of its head."""
    return points_of(arrow.find(f".//{SVG}path")), points_of(arrow.find(f".//{SVG}polygon"))


def points_of(element):
    numbers = re.findall(r"-?[\d.]+", element.get("points") or element.get("d"))
    return [(float(x), float(y)) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]


def content(svg):
    """Its words and its groups: not where they are, which other fonts and another Graphviz may choose otherwise."""
    root = ET.fromstring(svg)
    words = sorted(text.text.strip() for text in root.iter(f"{SVG}text"))
    groups = sorted((group.get("class", ""), group.findtext(f"{SVG}title", "")) for group in root.iter(f"{SVG}g"))
    return words, groups
