"""The picture of a step: its operations by kind, from the old carry on the left to the new one on the right."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rnnscan.insight.explain import Explanation


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch
except ModuleNotFoundError as error:
    raise ImportError(
        f"step_picture: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan.'
    ) from error


COLOURS = {"invariant": "#bdbdbd", "parallel": "#74c476", "linear": "#6baed6", "recurrent": "#fdae6b"}
GIVEN = "#f0f0f0"
# Left out: operations that only move values, or broadcast parameters over the batch.
SILENT = {
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p", "expand_dims", "pad", "real",
    "reshape", "slice", "split", "squeeze", "stop_gradient", "transpose",
}  # fmt: skip
SYMBOLS = {
    "add": "+", "add_any": "+", "conv_general_dilated": "conv", "custom_jvp_call": "f", "div": "/", "dot_general": "@",
    "integer_pow": "^", "log1p": "log", "logistic": "\N{GREEK SMALL LETTER SIGMA}", "mul": "\N{MULTIPLICATION SIGN}",
    "neg": "\N{MINUS SIGN}", "reduce_max": "max", "reduce_sum": "\N{N-ARY SUMMATION}", "rsqrt": "1/\N{SQUARE ROOT}",
    "select_n": "?", "sqrt": "\N{SQUARE ROOT}", "square": "\N{SUPERSCRIPT TWO}", "sub": "\N{MINUS SIGN}",
}  # fmt: skip
PRODUCTS = {"dot_general", "conv_general_dilated"}
SWEEPS = 24


@dataclass
class _Node:
    """An operation, an argument or a result of the step; `reads` are the nodes of its operands."""

    text: str
    colour: str
    reads: list["_Node"]
    large: bool = False
    name: str = ""
    returned: bool = False
    column: int = 0
    row: float = 0.0
    readers: list["_Node"] = field(default_factory=list)


def step_figure(explanation: Explanation, carry_names: Sequence[str], title: str = "") -> Figure:
    """Draw an explanation of `rnnscan.explain`.

    Args:
        explanation: the explanation.
        carry_names: a name for each leaf of the carry.
        title: the title.

    Returns:
        A matplotlib figure.
    """
    nodes = _nodes(explanation, carry_names)
    _place(nodes)
    columns, rows = max(node.column for node in nodes) + 1, max(node.row for node in nodes) + 1
    figure = Figure(figsize=(0.72 * columns + 0.6, 0.52 * rows + 0.8), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for node in nodes:
        for source in node.reads:
            _draw_edge(axes, source, node)
    for node in nodes:
        _draw_node(axes, node)
    kinds = [kind for kind in COLOURS if any(node.colour == COLOURS[kind] for node in nodes)]
    marks = [Line2D([], [], marker="o", linestyle="", color=COLOURS[kind], label=kind) for kind in kinds]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=8)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlim=(-0.7, columns - 0.3), ylim=(rows - 0.3, -0.7))
    axes.axis("off")
    return figure


def _nodes(explanation: Explanation, carry_names: Sequence[str]) -> list[_Node]:
    """The nodes of the operations that compute something, and of the step's arguments and results."""
    given = {f"carry[{index}]": _Node(name, GIVEN, []) for index, name in enumerate(carry_names)}
    made: list[list[_Node]] = []
    nodes: list[_Node] = list(given.values())

    def sources(read: int | str) -> list[_Node]:
        if isinstance(read, int):
            return made[read]
        if read.startswith("x") and read not in given:
            given[read] = _Node("x", GIVEN, [])
            nodes.append(given[read])
        return [given[read]] if read in given else []

    for equation in explanation.equations:
        read = list({id(node): node for source in equation.reads for node in sources(source)}.values())
        if equation.operation in SILENT or not read:
            made.append(read)
            for node in read if equation.name else ():
                node.name = equation.name
            continue
        text = SYMBOLS.get(equation.operation, equation.operation.replace("_", " "))
        node = _Node(text, COLOURS[equation.kind], read, equation.operation in PRODUCTS, equation.name)
        made.append([node])
        nodes.append(node)
    new_names = [f"{name}\N{PRIME}" for name in carry_names]
    returned = [(name, leaf.source) for name, leaf in zip(new_names, explanation.carry.values(), strict=True)]
    for name, source in [*returned, *(("y", source) for source in explanation.y)]:
        nodes.append(_Node(name, GIVEN, sources(source), returned=True))
    return nodes


def _place(nodes: list[_Node]) -> None:
    """Set columns by the longest path from an argument, and rows so that neighbours are near.

    Source: the layers and the sweeps are those of Sugiyama, Tagawa and Toda 1981, "Methods for Visual Understanding of
    Hierarchical System Structures".
    """
    for node in nodes:
        node.column = 1 + max((source.column for source in node.reads), default=-1)
        for source in node.reads:
            source.readers.append(node)
    last = max(node.column for node in nodes if not node.returned) + 1
    for node in nodes:
        if node.returned:
            node.column = last
        elif not node.reads and node.text == "x" and node.readers:
            node.column = min(reader.column for reader in node.readers) - 1
    columns = [[node for node in nodes if node.column == column] for column in range(last + 1)]
    for column in columns:
        for row, node in enumerate(column):
            node.row = float(row)
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 else reversed(columns):
            _order(column, to_the_left=bool(sweep % 2))
    top = min(node.row for node in nodes)
    for node in nodes:
        node.row -= top


def _order(column: list[_Node], *, to_the_left: bool) -> None:
    """Put each node of a column near its neighbours, in a row of its own."""

    def wanted(node: _Node) -> float:
        neighbours = node.reads if to_the_left else node.readers
        return sum(other.row for other in neighbours) / len(neighbours) if neighbours else node.row

    rows = {id(node): wanted(node) for node in column}
    column.sort(key=lambda node: rows[id(node)])
    free = -float("inf")
    for node in column:
        node.row = max(rows[id(node)], free)
        free = node.row + 1
    drift = sum(node.row - rows[id(node)] for node in column) / len(column)
    for node in column:
        node.row -= drift


def _draw_edge(axes: Axes, source: _Node, target: _Node) -> None:
    straight = target.column == source.column + 1 or source.row != target.row
    axes.add_patch(
        FancyArrowPatch(
            (source.column, source.row),
            (target.column, target.row),
            arrowstyle="-|>",
            mutation_scale=7,
            shrinkA=9,
            shrinkB=10,
            connectionstyle="arc3,rad=0" if straight else "arc3,rad=-0.2",
            color="0.55",
            linewidth=0.8,
            zorder=1,
            clip_on=False,
        )
    )


def _draw_node(axes: Axes, node: _Node) -> None:
    centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 3}
    if node.colour == GIVEN:
        box = {"boxstyle": "round,pad=0.35", "facecolor": GIVEN, "edgecolor": "0.6"}
        axes.text(node.column, node.row, node.text, fontsize=7, bbox=box, **centred)
        return
    size, edge = (420, "0.2") if node.large else (300, "0.6")
    axes.scatter(node.column, node.row, s=size, color=node.colour, edgecolors=edge, zorder=2)
    axes.text(node.column, node.row, node.text, fontsize=8 if len(node.text) < 4 else 6, **centred)
    if node.name:
        axes.text(node.column, node.row + 0.42, node.name, fontsize=6, color="0.3", **centred)
