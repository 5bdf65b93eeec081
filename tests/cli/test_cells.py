"""The commands that look into a cell: explain and plan."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


Command = Callable[..., Result]

SMALL = ["--hidden", "8", "--inputs", "4", "--batch", "2", "--length", "32"]


def test_explain_shows_the_kinds_and_draws_the_step(rnnscan: Command, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "step.png"
    result = rnnscan("explain", "mingru", *SMALL, "--recompute", "gates", "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "engine: fission" in result.stdout
    assert "carry[0]: float32[2,8], loop 1, linear" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plan_finds_a_choice_and_shows_where_its_bytes_go(rnnscan: Command) -> None:
    result = rnnscan("plan", "LSTM", "--budget", "1MiB", *SMALL)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Memory()\n")
    assert "of 1MiB besides its arguments and results, and 1.00 of the estimated time" in " ".join(
        result.stdout.split()
    )
    assert "recurrent_kernel" in result.stdout


@pytest.mark.slow  # It compiles every choice.
def test_plan_draws_its_choice_among_others(rnnscan: Command, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "plan.svg"
    result = rnnscan("plan", "GRU", "--budget", "30KiB", *SMALL, "--rounds", "1", "--plot", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_text().startswith("<?xml")
    assert rnnscan("plan", "GRU", "--budget", "30KiB", *SMALL, "--plot", tmp_path / "plan.xyz").exit_code == 2


def test_a_cell_of_ones_own(rnnscan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_cells.py").write_text("import rnnscan as rs\ntwo = rs.stack(rs.cells.GRU(3), rs.cells.GRU(3))\n")
    monkeypatch.chdir(tmp_path)
    shape = SMALL[2:]
    result = rnnscan("explain", "my_cells:two", *shape)
    assert result.exit_code == 0, result.output
    assert "carry[1][0]" in result.stdout

    result = rnnscan("explain", "my_cells:two", *SMALL)
    assert result.exit_code == 2
    assert "--hidden must be given with a cell of the library; got --hidden 8 and 'my_cells:two'" in " ".join(
        result.output.split()
    )

    result = rnnscan("explain", "my_cells:tow", *shape)
    assert result.exit_code == 2
    assert "my_cells has no 'tow'. Did you mean 'two'?" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "LSMT"], "got 'LSMT'. Did you mean 'LSTM'?"),
        (["explain", "no_such_module:cell"], "no module 'no_such_module'"),
        (["explain", "math:pi"], "with `init`"),
        (["explain", "LSTM", "--recompute", "gate"], "Did you mean 'gates'?"),
        (["plan", "LSTM", "--budget", "much"], "`budget` must be a number of bytes above 0"),
        (["plan", "LSTM", "--budget", "1B"], "nothing fits 1 B"),
    ],
)
def test_what_cannot_be_is_said_in_one_paragraph(rnnscan: Command, arguments: list[str], message: str) -> None:
    command, *options = arguments
    shape = SMALL[2:] if ":" in options[0] else SMALL
    result = rnnscan(command, *shape, "--length", "6", *options)
    assert result.exit_code == 2
    assert message in result.output
