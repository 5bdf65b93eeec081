"""Reports in a browser: numbers on the right, kinds of work in their colors with a legend; and in treescope."""

import re

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.graph.draw.colors import KINDS


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


@pytest.mark.parametrize("report", [rs.explain, rs.memory_report], ids=["explain", "memory_report"])
def test_treescope_shows_the_report(report):
    treescope = pytest.importorskip("treescope")
    shown = report(*ARGUMENTS)
    text = treescope.render_to_text(shown)
    assert all(line in text for line in str(shown).splitlines())
    assert treescope.render_to_html(shown)
