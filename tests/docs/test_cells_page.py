"""The page of cells is what its script writes, and has every cell."""

from pages import DOCS, script
from rnnscan import cells


def test_the_page_of_cells_is_what_its_script_writes_and_has_every_cell():
    made = script("make_cells_page")
    assert (DOCS / "cells.md").read_text() == made.page()
    exported = {name for name, value in vars(cells).items() if isinstance(value, type)}
    shown = {type(cell).__name__ for members in made.FAMILIES.values() for cell in members}
    assert shown == exported
    assert {path.stem for path in made.PICTURES.glob("*.svg")} == exported
    for cell in made.FAMILIES["Long short-term memory"]:
        picture = made.explanation_of(cell).draw()
        assert (made.PICTURES / f"{type(cell).__name__}.svg").read_text() == picture.text
