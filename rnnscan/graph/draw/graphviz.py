"""DOT laid out and drawn by Graphviz. It needs the extra `plot`."""

from html import escape

from rnnscan.graph.draw.text import printable


try:
    import pygraphviz
except ModuleNotFoundError as error:
    raise ImportError(
        f"draw: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan, or draw as "mermaid" or "dot".'
    ) from error


def rendered(dot: str, format: str) -> bytes:
    """The graph as Graphviz draws it.

    Args:
        dot: the graph in DOT.
        format: a format of Graphviz, such as "png".
    """
    graph = pygraphviz.AGraph(string=dot)
    try:
        picture: bytes = graph.draw(format=format, prog="dot")
    finally:
        graph.close()
    return picture


def to_svg(dot: str, title: str) -> str:
    """The graph as an SVG element, which may stand in a page of HTML, with a name for readers of the screen.

    Args:
        dot: the graph in DOT.
        title: the title, or "".
    """
    _, _, element = rendered(dot, "svg").decode().partition("<svg")
    return f'<svg role="img" aria-label="{escape(printable(title) or "graph")}"{element}'
