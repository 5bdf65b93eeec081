"""A diagram as a Mermaid flowchart, which GitHub and many pages draw."""

from collections.abc import Iterator

from rnnscan.graph.draw.colors import END, KINDS, NEUTRAL, Color, line_of
from rnnscan.graph.draw.diagram import Box, Diagram
from rnnscan.graph.draw.text import printable


_DIRECTIONS = {"down": "TD", "right": "LR"}
_SHAPES = {"argument": '(["{}"])', "result": '(["{}"])', "group": '[["{}"]]', "operation": '["{}"]'}
_PLAIN = frozenset(" .,:()[]+-=/_")


def to_mermaid(diagram: Diagram, direction: str, title: str) -> str:
    """The diagram as the text of a Mermaid flowchart.

    Thick arrows are kept values, dotted ones are offloaded or kept at some steps, thin ones are recomputed.

    Args:
        diagram: the diagram.
        direction: "down", or "right".
        title: the title, or "".
    """
    return "\n".join([*_title(title), f"flowchart {_DIRECTIONS[direction]}", *_lines(diagram), ""])


def _title(title: str) -> list[str]:
    # A title stands in the front matter, in YAML: in quotes, with backslashes and quotes escaped.
    words = printable(title).replace("\\", "\\\\").replace('"', '\\"')
    return ["---", f'title: "{words}"', "---"] if title else []


def _lines(diagram: Diagram) -> Iterator[str]:
    classes: dict[str, Color] = {}
    for box in diagram.boxes:
        name, color = _class(box)
        classes[name] = color
        text = "<br/>".join(map(escaped, (box.text, *box.notes)))
        yield f"    {box.id}{_SHAPES[box.role].format(text)}:::{name}"
    for arrow in diagram.arrows:
        yield f"    {arrow.source} {_arrow(arrow.keeping)} {arrow.target}"
    for name, color in classes.items():
        yield f"    classDef {name} fill:{color.fill},stroke:{color.line},color:#000"


def _class(box: Box) -> tuple[str, Color]:
    if box.is_end:
        return "given", END
    return (box.kind, KINDS[box.kind]) if box.kind in KINDS else ("plain", NEUTRAL)


def _arrow(keeping: str) -> str:
    line = line_of(keeping)
    if line.style != "solid":
        return "-.->"
    return "==>" if line.width > 2 else "-->"


def escaped(text: str) -> str:
    """The text with Mermaid's entity codes for all but letters, digits and a few marks.

    Example:
        >>> escaped('a "b"')
        'a #34;b#34;'
    """
    return "".join(
        character if character.isalnum() or character in _PLAIN else f"#{ord(character)};" for character in text
    )
