import re
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner, Result

import rnnscan as rs
from rnnscan.cli.app import app
from rnnscan.cli.options import parse_recompute, parse_segment
from rnnscan.insight import measure_losses
from rnnscan.insight.tradeoff import memory_choices


Command = Callable[..., Result]

SMALL = ["tradeoff", "--hidden", "32", "--inputs", "8", "--batch", "4", "--length", "27", "--rounds", "2"]
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}


def to_bytes(readable: str) -> float:
    number, unit = readable.split()
    return float(number) * UNITS[unit]


def table_rows(output: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if "│" in line]


def test_the_table_compares_memory_choices_and_the_picture_is_written(rnnscan: Command, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "tradeoff.png"

    result = rnnscan(*SMALL, "--plot", picture)

    assert result.exit_code == 0, result.output
    rows = table_rows(result.stdout)
    assert [row[0] for row in rows] == [
        "plain autodiff",
        "every name kept",
        "recompute all",
        "segment sqrt",
        "segment 9,3",
    ]
    kept = [to_bytes(row[1]) for row in rows]
    assert kept[:3] == sorted(kept[:3], reverse=True)
    assert max(kept[2:]) < 0.45 * kept[0]
    assert rows[0][2] == "100%"
    for row, count in zip(rows, kept, strict=True):
        assert abs(float(row[2].removesuffix("%")) / 100 - count / kept[0]) < 0.02
        assert to_bytes(row[3]) > 0
        assert re.fullmatch(r"\d+\.\d ms", row[4])
        assert float(row[5]) > 0
    assert rows[0][5] == "1.00"
    assert "LSTM(hidden_size=32), 4 rows x 27 steps of 8 features" in " ".join(result.stdout.split())
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.slow
def test_a_choice_of_your_own_and_a_planned_one_are_rows_and_the_table_fits_80_columns() -> None:
    own = ["RNN", "--recompute", "preactivation", "--segment", "7", "--budget", "1MiB", "--last-only"]

    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*SMALL, *own])

    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    rows = table_rows(result.stdout)
    own_row = next(row for row in rows if row[0].startswith("recompute"))
    assert "segment 7" in " ".join(row[0] for row in rows)
    assert 0 < to_bytes(own_row[1]) < to_bytes(rows[0][1])
    assert re.fullmatch(r"\d+\.\d ms", own_row[4])
    # What is planned for a budget that is no limit keeps every name, which is a row anyway.
    assert [row[0] for row in rows[:2]] == ["plain autodiff", "every name kept"]
    assert "median over the rounds" in " ".join(result.stdout.split())


def test_names_that_the_cell_does_not_have_are_refused_before_measuring(rnnscan: Command) -> None:
    result = rnnscan(*SMALL, "--recompute", "gate")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Did you mean 'gates'?" in result.stderr


def test_a_picture_that_cannot_be_written_is_refused_before_measuring(
    rnnscan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = rnnscan(*SMALL, "--plot", tmp_path / "tradeoff.xyz")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "the file's ending must be one of ." in result.stderr

    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "rnnscan.insight.picture", raising=False)
    result = rnnscan(*SMALL, "--plot", tmp_path / "tradeoff.png")
    assert result.exit_code == 2
    assert 'pip install ".[plot]" in the checkout of rnnscan.' in result.stderr


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 27, 64, 1000])
def test_every_choice_fits_the_length(length: int) -> None:
    choices = memory_choices(("gates",), length)
    assert next(iter(choices.values())) is None
    for choice, memory in choices.items():
        if choice.startswith("segment ") and "," in choice:
            outer, inner = memory.segment
            assert 1 < inner < outer < length


@pytest.mark.parametrize(
    ("values", "names"),
    [([], ()), (["a"], ("a",)), (["a,b", "c"], ("a", "b", "c")), (["a", "a, b"], ("a", "b")), (["all"], "all")],
)
def test_names_to_recompute_are_read(values: list[str], names: object) -> None:
    assert parse_recompute(values) == names


@pytest.mark.parametrize(("value", "segment"), [("sqrt", "sqrt"), ("32", 32), ("64,8", (64, 8)), ("64, 8", (64, 8))])
def test_segments_are_read(value: str, segment: object) -> None:
    assert parse_segment(value) == segment
    assert rs.Memory(segment=parse_segment(value)).segment == segment


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there must be at least one memory choice; got none\."):
        measure_losses(lambda memory: (jnp.sum, (jnp.ones(2),)), {})
    with pytest.raises(ValueError, match=r"`rounds` must be at least 1; got 0\."):
        measure_losses(lambda memory: (jnp.sum, (jnp.ones(2),)), {"plain": None}, rounds=0)
