"""The page of cells is what its script writes, and has every cell."""

import re

import jax

from pages import DOCS, script
from rnnscan import cells


def comparable(page: str) -> str:
    """The page; but with other versions of JAX than that of the page, whose functions differ, without counts."""
    return page if jax.__version__ == "0.10.0" else re.sub(r"\| \d+ \| \d+ \|", "| | |", page)


def test_the_page_of_cells_is_what_its_script_writes_and_has_every_cell():
    made = script("make_cells_page")
    assert comparable((DOCS / "cells.md").read_text()) == comparable(made.page())
    exported = {name for name, value in vars(cells).items() if isinstance(value, type)}
    shown = {type(cell).__name__ for members in made.FAMILIES.values() for cell in members}
    assert shown == exported
    assert {path.stem for path in made.PICTURES.glob("*.svg")} == exported
    for cell in made.FAMILIES["Long short-term memory"]:
        picture = made.explanation_of(cell).draw()
        assert (made.PICTURES / f"{type(cell).__name__}.svg").read_text() == picture.text
