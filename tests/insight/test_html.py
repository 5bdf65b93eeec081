"""Reports, graphs and plans in a browser: numbers on the right, kinds in their colors with a legend; in treescope."""

import re

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.graph.draw.colors import KINDS
from rnnscan.insight.plan import PlannedMemory


CELL, XS = rs.cells.LSTM(8), jnp.ones((6, 2, 3))
ARGUMENTS = (CELL, CELL.init(jax.random.key(0), 3), CELL.initial_carry(XS[0]), XS)


def styles_of(html, text):
    """The styles of the cells with a text."""
    return re.findall(rf"<td style='([^']*)'>{re.escape(text)}</td>", html)


def test_numbers_stand_on_the_right_and_text_on_the_left():
    html = rs.memory_report(*ARGUMENTS, compile=False)._repr_html_()
    assert all("text-align:right" in style for style in styles_of(html, "128 B"))
    assert styles_of(html, "128 B")
    assert all("text-align:left" in style for style in styles_of(html, "xs"))
    ruled = re.findall(r"border-top:1px solid'>([^<]*)<", html)
    assert ruled[0] == "all standard"


def test_kinds_have_their_colors_and_a_legend():
    explanation = rs.explain(*ARGUMENTS)
    html = explanation._repr_html_()
    there = [kind for kind, count in explanation.kinds.items() if count]
    assert set(there) == {"invariant", "parallel", "recurrent"}
    for kind, color in KINDS.items():
        assert len(styles_of(html, kind)) == explanation.kinds[kind]
        assert all(color.fill in style for style in styles_of(html, kind))
        assert (color.meaning in html) == (kind in there)


def graph_of(cell, params, carry, xs):
    return rs.graph.trace(cell, params, carry, xs[0])


def plan_of(*arguments):
    # A choice as `rs.plan` returns it, without compiling.
    return PlannedMemory(recompute="all", segment=3, temporary_bytes=3 * 2**20, relative_cost=1.5)


def test_a_graph_is_a_table_with_bytes_on_the_right_and_its_kinds():
    graph = graph_of(*ARGUMENTS)
    html = graph._repr_html_()
    assert str(repr(graph)).replace(">", "&gt;") in html
    assert all("text-align:right" in style for style in styles_of(html, "256 B"))
    assert styles_of(html, "256 B")  # float32[2,32], the gates
    assert all("text-align:left" in style for style in styles_of(html, "dot_general"))
    assert len(styles_of(html, "dot_general")) == sum(node.operation == "dot_general" for node in graph.nodes)
    for kind in ("invariant", "parallel", "recurrent"):
        assert all(KINDS[kind].fill in style for style in styles_of(html, kind))
        assert styles_of(html, kind)
        assert KINDS[kind].meaning in html


def test_a_graph_of_another_function_and_of_nothing_has_no_kinds():
    html = rs.graph.trace(lambda x: jnp.sin(x) * 2, 1.0)._repr_html_()
    assert styles_of(html, "sin")
    assert not any(color.meaning in html for color in KINDS.values())
    assert "<p>Graph of 0 nodes" in rs.graph.trace(lambda: ())._repr_html_()


def test_a_plan_shows_its_choice_and_its_numbers():
    html = plan_of()._repr_html_()
    assert "Memory(recompute=&#x27;all&#x27;, segment=3)" in html
    for number in ("3 MiB", "1.50 times"):
        assert all("text-align:right" in style for style in styles_of(html, number))
        assert styles_of(html, number)
    assert "besides arguments and results" in html


def test_no_two_columns_have_one_header():
    for html in (rs.memory_report(*ARGUMENTS, compile=False)._repr_html_(), graph_of(*ARGUMENTS)._repr_html_()):
        headers = re.findall(r"<th [^>]*>([^<]*)</th>", html)
        assert len(headers) == len(set(headers)) > 1


@pytest.mark.parametrize(
    "report",
    [rs.explain, rs.memory_report, graph_of, plan_of],
    ids=["explain", "memory_report", "graph", "plan"],
)
def test_treescope_shows_the_report(report):
    treescope = pytest.importorskip("treescope")
    shown = report(*ARGUMENTS)
    text = treescope.render_to_text(shown)
    assert all(line in text for line in str(shown).splitlines())
    assert treescope.render_to_html(shown)
