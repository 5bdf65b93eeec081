"""What the tests of the documentation share: its pages and tables."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType


ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def table(page: str, first_header: str) -> list[list[str]]:
    """The rows of the table of a page whose first column has this header, without the header."""
    (found,) = re.findall(
        rf"^\| {re.escape(first_header)} \|.*\n\|[ :|-]+\|\n((?:\|.*\n)+)", (DOCS / page).read_text(), re.MULTILINE
    )
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found.splitlines()]


def fenced(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page in order: what stands behind the fence, and the block."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def code(cell: str) -> str:
    """What stands in backticks first in a cell of a table."""
    found = re.match(r"`([^`]+)`", cell)
    assert found, cell
    return found[1]


def number(cell: str) -> int:
    """A number of bytes, 1,234."""
    assert re.fullmatch(r"\d{1,3}(,\d{3})*", cell), cell
    return int(cell.replace(",", ""))


def script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
