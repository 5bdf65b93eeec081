"""simplified(): a diagram without what only moves values, and with parameters written into their readers."""

from collections import defaultdict
from dataclasses import replace

from rnnscan.graph.draw.colors import most_kept
from rnnscan.graph.draw.diagram import Arrow, Box, Diagram
from rnnscan.graph.draw.text import shortened


def simplified(diagram: Diagram) -> Diagram:
    """The diagram without operations that only move values, and without invariant arguments.

    The readers of a moved value read its origin. The name of an invariant argument becomes a note of each reader.

    Args:
        diagram: the diagram of a program.
    """
    return _without_parameters(_without_moves(diagram))


def _without_moves(diagram: Diagram) -> Diagram:
    boxes = {box.id: box for box in diagram.boxes}
    into: dict[str, list[Arrow]] = defaultdict(list)
    for arrow in diagram.arrows:
        into[arrow.target].append(arrow)
    origin: dict[str, list[Arrow]] = {}  # Id of a box that is left out -> the arrows that lead to its origin.
    kept: list[Arrow] = []
    for box in diagram.boxes:
        merged_arrows: dict[tuple[str, str], Arrow] = {}
        for arrow in into[box.id]:
            for incoming in origin.get(arrow.source, [arrow]):
                keeping = most_kept([incoming.keeping, arrow.keeping])  # A value is kept if it is, or its origin.
                merged = replace(incoming, target=box.id, keeping=keeping, tooltip=arrow.tooltip)
                merged_arrows.setdefault((incoming.source, incoming.value), merged)
        if box.only_moves and len(merged_arrows) < 2:
            origin[box.id] = list(merged_arrows.values())
            for incoming in origin[box.id]:
                source = boxes[incoming.source]
                if box.notes and source.role == "operation":
                    boxes[incoming.source] = replace(source, notes=(*source.notes, *box.notes))
            del boxes[box.id]
        else:
            kept += merged_arrows.values()
    return Diagram(tuple(boxes.values()), tuple(kept))


def _without_parameters(diagram: Diagram) -> Diagram:
    boxes = {box.id: box for box in diagram.boxes}
    names: dict[str, list[str]] = defaultdict(list)
    kept = []
    for arrow in diagram.arrows:
        source, target = boxes[arrow.source], boxes[arrow.target]
        if _is_parameter(source) and target.role != "result":
            names[target.id].append(source.name)
        else:
            kept.append(arrow)
    read = {arrow.source for arrow in kept}
    return Diagram(
        tuple(
            replace(box, notes=(*map(_key, names[box.id]), *box.notes))
            for box in diagram.boxes
            if not _is_parameter(box) or box.id in read
        ),
        tuple(kept),
    )


def _is_parameter(box: Box) -> bool:
    return box.role == "argument" and box.kind == "invariant"


def _key(place: str) -> str:
    """The keys of a place: `0 kernel` of `params[0]['kernel']`.

    Example:
        >>> _key("params[0]['kernel']"), _key("scale"), _key("captured[1]")
        ('0 kernel', 'scale', 'captured[1]')
    """
    _, _, keys = place.partition("[")
    return shortened(" ".join(keys.replace("'", "").rstrip("]").split("][")) if "'" in keys else place)
