"""A diagram in DOT, the language of Graphviz."""

from collections.abc import Iterator
from html import escape
from itertools import zip_longest

from rnnscan.graph.draw.colors import END, KINDS, LINES, color_of, line_of
from rnnscan.graph.draw.diagram import Box, Diagram
from rnnscan.graph.draw.text import printable, shortened


_DIRECTIONS = {"down": "TB", "right": "LR"}
# Verdana is as wide as DejaVu Sans, so text stays in its box where only one of them is installed.
_FONT = 'fontname="DejaVu Sans,Verdana,sans-serif"'
# In points.
_TEXT, _NOTE = 10, 7.5
_FAINT = "#4a5460"
# Without a limit Graphviz goes on until no position can be better: 21 s for 350 boxes and 558 arrows with version
# 14.1.5, and 2.3 s with this limit.
_LIMITS = "nslimit=1 nslimit1=1"


def to_dot(diagram: Diagram, direction: str, title: str) -> str:
    """The diagram as the text of a DOT file.

    Args:
        diagram: the diagram.
        direction: "down", or "right".
        title: the title, or "".
    """
    title = shortened(printable(title), 120)
    rows = [f'<tr><td colspan="4" align="left"><b>{_text(title)}</b></td></tr>'] if title else []
    rows += _legend(diagram)
    table = f'<table border="0" cellborder="0" cellspacing="4">{"".join(rows)}</table>'
    return "\n".join(
        [
            f"digraph {quoted(title or 'graph')} {{",
            f"  rankdir={_DIRECTIONS[direction]} ranksep=0.3 nodesep=0.2 {_LIMITS} fontsize={_TEXT} {_FONT}",
            *([f"  label=<{table}> labelloc=t labeljust=l"] if rows else []),
            f'  node [shape=box margin="0.1,0.05" width=0.4 height=0.2 fontsize={_TEXT} {_FONT}]',
            "  edge [arrowsize=0.6]",
            *map(_node, diagram.boxes),
            *_edges(diagram),
            "}",
            "",
        ]
    )


def _node(box: Box) -> str:
    color = color_of(box.kind)
    fill, style = (END.fill, "rounded,filled") if box.is_end else (color.fill, "filled")
    line = END.line if box.is_end and not box.kind else color.line
    return (
        f'  {box.id} [label={_label(box)} tooltip={quoted(box.tooltip)} class="{box.kind}" style="{style}" '
        f'fillcolor="{fill}" color="{line}" penwidth={2 if box.stands_out else 1}]'
    )


def _label(box: Box) -> str:
    text = _text(box.text or " ")
    # The spaces, which are of the text's size, keep the notes' lines apart.
    notes = (f'<br/> <font point-size="{_NOTE}" color="{_FAINT}">{_text(note)}</font> ' for note in box.notes)
    return f"<{f'<b>{text}</b>' if box.stands_out else text}{''.join(notes)}>"


def _text(text: str) -> str:
    return escape(text, quote=False)


def _edges(diagram: Diagram) -> Iterator[str]:
    ends = {box.id for box in diagram.boxes if box.is_end}
    for arrow in diagram.arrows:
        line = line_of(arrow.keeping)
        # Arrows between operations pull more, so that a chain is a straight line with its arguments at one side.
        weight = 1 if {arrow.source, arrow.target} & ends else 4
        look = f'style={line.style} color="{line.color}" penwidth={line.width}'
        name = arrow.keeping.replace(" ", "-")
        yield (
            f"  {arrow.source} -> {arrow.target} "
            f'[weight={weight} class="{name}" {look} tooltip={quoted(arrow.tooltip)}]'
        )


def _legend(diagram: Diagram) -> Iterator[str]:
    """The kinds and the lines that the diagram has, side by side in rows of a table."""
    kinds = {box.kind for box in diagram.boxes if not box.is_end}
    lines = {arrow.keeping for arrow in diagram.arrows}
    boxes = [
        _entry(f'border="1" bgcolor="{color.fill}" color="{color.line}"', color.meaning)
        for kind, color in KINDS.items()
        if kind in kinds
    ]
    ways = [
        _entry(f'border="{line.width:.0f}" sides="b" style="{line.style}" color="{line.color}"', line.meaning)
        for keeping, line in LINES.items()
        if keeping in lines
    ]
    for left, right in zip_longest(boxes, ways, fillvalue="<td></td><td></td>"):
        yield f"<tr>{left}{right}</tr>"


def _entry(look: str, meaning: str) -> str:
    words = f'<font point-size="{_NOTE + 0.5}" color="{_FAINT}">{meaning}</font>'
    return f'<td {look} width="20" height="9"></td><td align="left">{words}</td>'


def quoted(text: str) -> str:
    r"""The text as a string of DOT, in which Graphviz expands neither escapes nor HTML entities.

    Example:
        >>> print(quoted('a "b" & c'))
        "a \"b\" &amp; c"
    """
    plain = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + plain.replace("\n", "\\n") + '"'
