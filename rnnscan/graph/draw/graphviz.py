"""DOT laid out and drawn by Graphviz. It needs the extra `plot`."""

import subprocess
import sys
from html import escape

from rnnscan.graph.draw.text import printable


try:
    import pygraphviz  # noqa: F401 (for the process below)
except ModuleNotFoundError as error:
    raise ImportError(
        f"draw: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan, or draw as "mermaid" or "dot".',
        name=error.name,
    ) from error


_PROGRAM = """
import sys, pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot"))
"""


def rendered(dot: str, format: str) -> bytes:
    """The graph as Graphviz draws it.

    It runs in a separate process, which takes 0.05 s: Graphviz is not safe in threads, cannot be interrupted, and its
    fontconfig 2.13 warns on stderr about the configuration of newer systems, which a notebook would show.

    Args:
        dot: the graph in DOT.
        format: a format of Graphviz, such as "png".

    Raises:
        RuntimeError: if Graphviz fails.
    """
    command = [sys.executable, "-P", "-c", _PROGRAM, format]
    process = subprocess.run(command, input=dot.encode(), capture_output=True, check=False)
    if process.returncode:
        raise RuntimeError(
            f"draw: Graphviz must draw a picture as {format!r}; got exit status {process.returncode} and "
            f'{process.stderr.decode(errors="replace").strip()!r}. Write the graph with draw("dot") to see it.'
        )
    return process.stdout


def to_svg(dot: str, title: str) -> str:
    """The graph as an SVG element, which may stand in a page of HTML, with a label for screen readers.

    Args:
        dot: the graph in DOT.
        title: the title, or "".
    """
    _, _, element = rendered(dot, "svg").decode().partition("<svg")
    return f'<svg role="img" aria-label="{escape(printable(title) or "graph")}"{element}'
