"""The page of cells is what its script writes, and has every cell."""

import ast
import re

import jax

from pages import DOCS, script, table
from rnnscan import cells
from svg_parts import content


def comparable(page: str) -> str:
    """The page; but with other versions of JAX than that of the page, whose functions differ, without counts."""
    return page if jax.__version__ == "0.10.2" else re.sub(r"\| \d+ \| \d+ \|", "| | |", page)


def test_the_page_of_cells_is_what_its_script_writes_and_has_every_cell():
    made = script("make_cells_page")
    assert comparable((DOCS / "cells.md").read_text()) == comparable(made.page())
    exported = {name for name, value in vars(cells).items() if isinstance(value, type)}
    shown = {type(cell).__name__ for members in made.FAMILIES.values() for cell in members}
    assert shown == exported
    assert {path.stem for path in made.PICTURES.glob("*.svg")} == exported
    for cell in made.FAMILIES["Long short-term memory"]:
        picture = made.explanation_of(cell).draw()
        assert content((made.PICTURES / f"{type(cell).__name__}.svg").read_text()) == content(picture.text)


def test_the_page_of_cells_opens_with_a_table_of_all():
    page = (DOCS / "cells.md").read_text()
    assert page.index("| cell |") < page.index("\n## ")
    rows = {row[0]: row[1:] for row in table("cells.md", "cell | paper or code")}
    made = script("make_cells_page")
    members = [cell for family in made.FAMILIES.values() for cell in family]
    assert list(rows) == [f"[{type(cell).__name__}](#{type(cell).__name__.lower()})" for cell in members]
    assert rows["[LSTM](#lstm)"] == ["Hochreiter and Schmidhuber 1997", "`hidden`, `cell`", "`gates`", "394,240"]
    assert 4 * 256 * (128 + 256 + 1) == 394_240
    assert all(all(row) for row in rows.values())


def test_each_row_of_public_code_has_a_test_of_that_cell():
    page = script("make_cells_page")
    for row in page.PUBLIC_CODE:
        path, function = row.test.split("::")
        tree = ast.parse((DOCS.parent / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, row.test
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        made = [node for node in calls if ast.unparse(node.func).split(".")[-1] == type(row.cell).__name__]
        options = set(re.findall(r"(\w+)=", page.call_of(row.cell)))
        assert any(options <= {keyword.arg for keyword in node.keywords} for node in made), row.test
    assert {"RGLRU", "LRU", "S6", "MLSTM"} <= {type(row.cell).__name__ for row in page.PUBLIC_CODE}
