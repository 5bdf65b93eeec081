"""Files of --plot and --out are checked before any work."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rnnscan.cli import explain, graph, plan, tradeoff


Command = Callable[..., Result]

COMMANDS = {
    "plan": (["plan", "gru", "--budget", "1MiB", "--plot"], "graph.png", ".xyz"),
    "tradeoff": (["tradeoff", "gru", "--plot"], "graph.png", ".xyz"),
    "explain": (["explain", "gru", "--plot"], "graph.svg", ".xyz"),
    "graph": (["graph", "gru", "--out"], "graph.svg", ".png"),
}


@pytest.fixture(params=COMMANDS)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str, str]:
    """A command, a file name that it takes, and a suffix that it refuses. Any work is an error."""

    def work(*arguments: object, **options: object) -> None:
        raise AssertionError("the work began before the file was checked")

    for module in (explain, graph, plan, tradeoff):
        monkeypatch.setattr(module, "example_of", work)
    return COMMANDS[request.param]


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


def test_the_suffix(rnnscan: Command, tmp_path: Path, case: tuple[list[str], str, str]) -> None:
    arguments, name, suffix = case
    file = (tmp_path / name).with_suffix(suffix)
    assert str(file) in refused(rnnscan(*arguments, file))


def test_the_folder(
    rnnscan: Command, tmp_path: Path, case: tuple[list[str], str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, name, _ = case
    folder, file = tmp_path / name, tmp_path / "file"
    folder.mkdir()
    file.touch()
    option = arguments[-1]
    assert f"{option} must be a file; got the folder" in refused(rnnscan(*arguments, folder))
    assert f"{option} must be in a folder; got" in refused(rnnscan(*arguments, file / "new" / name))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert f"no permission to write '{tmp_path}'" in refused(rnnscan(*arguments, tmp_path / "new" / name))
    assert sorted(tmp_path.iterdir()) == [file, folder]


def test_the_extra(
    rnnscan: Command, tmp_path: Path, case: tuple[list[str], str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, name, _ = case
    for package, module in (("matplotlib.axes", "insight.picture"), ("pygraphviz", "graph.draw.graphviz")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"rnnscan.{module}", raising=False)
    assert 'pip install ".[plot]" in the checkout of rnnscan' in refused(rnnscan(*arguments, tmp_path / name))
