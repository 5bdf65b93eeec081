"""rnnscan graph: a cell's step as text and as pictures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import rnnscan as rs
from rnnscan.cli.cells import example_of


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.

Command = Callable[..., Result]

SMALL = ["--hidden", "4", "--inputs", "3", "--batch", "2"]


@pytest.fixture(scope="module")
def graph() -> rs.graph.Graph:
    given = example_of("gru", hidden=4, inputs=3, batch=2, length=1)
    return rs.graph.trace(given.cell, given.with_arrays().params, given.carry, given.with_arrays().xs[0])


def test_a_graph_as_text(rnnscan: Command, graph: rs.graph.Graph) -> None:
    result = rnnscan("graph", "gru", *SMALL)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{graph}\n"
    assert "params['kernel']" in result.stdout


@pytest.mark.parametrize(("format", "suffix"), [("svg", ".svg"), ("mermaid", ".mmd"), ("dot", ".gv"), ("text", ".txt")])
def test_a_graph_in_a_file(rnnscan: Command, graph: rs.graph.Graph, format: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / "new" / f"graph{suffix}"
    result = rnnscan("graph", "gru", *SMALL, "--out", file)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"Graph in {file}.\n"
    expected = str(graph) if format == "text" else graph.draw(format).text
    assert file.read_text() == expected
    assert rnnscan("graph", "gru", *SMALL, "--format", format).stdout.rstrip("\n") == expected.rstrip("\n")


def test_what_is_no_cell_or_file(rnnscan: Command, tmp_path: Path) -> None:
    for arguments, message in (
        (["GRUU"], "Did you mean 'GRU'?"),
        (["rnnscan.cells:GRU", "--hidden", "4"], "Leave --hidden out."),
        (["gru", "--out", tmp_path], "--out must be a file; got the folder"),
    ):
        result = rnnscan("graph", *arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: ")
        assert message in result.stderr
    assert list(tmp_path.iterdir()) == []
