"""A diagram in DOT, the language of Graphviz."""

from collections.abc import Iterator

from rnnscan.graph.draw.colors import END, KEPT_AT_SOME, OFFLOADED, color_of, line_of
from rnnscan.graph.draw.layout.diagram import Box, Diagram
from rnnscan.graph.draw.text import FONT, printable


_DIRECTIONS = {"down": "TB", "right": "LR"}
_STYLES = {KEPT_AT_SOME: "dashed", OFFLOADED: "dotted"}


def to_dot(diagram: Diagram, direction: str, title: str) -> str:
    """The diagram as the text of a DOT file.

    Args:
        diagram: the diagram.
        direction: "down", or "right".
        title: the title, or "".
    """
    heading = [f"  label={quoted(printable(title))} labelloc=t labeljust=l"] if title else []
    font = FONT.partition(",")[0]
    return "\n".join(
        [
            "digraph {",
            f'  rankdir={_DIRECTIONS[direction]} fontname="{font}"',
            *heading,
            f'  node [shape=box fontname="{font}" fontsize=12]',
            *_lines(diagram),
            "}",
            "",
        ]
    )


def _lines(diagram: Diagram) -> Iterator[str]:
    for box in diagram.boxes:
        color = END if box.is_end else color_of(box.kind)
        style = "rounded,filled" if box.is_end else "filled"
        width = 2 if box.stands_out else 1
        yield (
            f'  {box.id} [label={_label(box)} tooltip={quoted(box.tooltip)} style="{style}" '
            f'fillcolor="{color.fill}" color="{color.line}" penwidth={width}]'
        )
    for arrow in diagram.arrows:
        line = line_of(arrow.keeping)
        style = f" style={_STYLES[arrow.keeping]}" if arrow.keeping in _STYLES else ""
        look = f'color="{line.color}" penwidth={line.width}{style}'
        yield f"  {arrow.source} -> {arrow.target} [{look} edgetooltip={quoted(arrow.tooltip)}]"


def _label(box: Box) -> str:
    return quoted("\n".join([box.text, *box.notes]))


def quoted(text: str) -> str:
    r"""The text as a string of DOT, in which Graphviz expands neither escapes nor HTML entities.

    Example:
        >>> print(quoted('a "b" & c'))
        "a \"b\" &amp; c"
    """
    plain = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + plain.replace("\n", "\\n") + '"'
