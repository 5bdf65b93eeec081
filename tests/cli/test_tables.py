"""Tables fit a terminal of 80 columns, and types stay whole."""

import re

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

import rnnscan as rs
from rnnscan._util.reports import Table
from rnnscan.cli.app import app
from rnnscan.cli.cells import example_of


SIZES = {"hidden": 8, "inputs": 4, "batch": 2, "length": 16}
FLAGS = [text for name, size in SIZES.items() for text in (f"--{name}", str(size))]


def shown(*arguments: str) -> list[str]:
    """The lines of a command in a terminal of 80 columns."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line for line in lines if cell_len(line) > 80] == []
    return lines


def check_types(lines: list[str], cell: str, *, hidden: int, inputs: int, batch: int, length: int) -> None:
    """Every type of a cell's equations is whole, once for each equation."""
    example = example_of(cell, hidden=hidden, inputs=inputs, batch=batch, length=length)
    explanation = rs.explain(example.cell, example.params, example.carry, example.xs)
    table = "\n".join(lines[next(i for i, line in enumerate(lines) if line.startswith("operation")) :])
    types = re.findall(r"\w+\[[\d,]*\]", table)
    assert types == [one.result for one in explanation.equations]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "LRU", "MLSTM", "Mamba2"])
def test_explain(cell: str) -> None:
    check_types(shown("explain", cell, *FLAGS), cell, **SIZES)


def test_explain_of_common_sizes_has_one_line_for_each_equation() -> None:
    sizes = {"hidden": 256, "inputs": 128, "batch": 32, "length": 1024}
    lines = shown("explain", "LSTM")
    check_types(lines, "LSTM", **sizes)
    assert sum("float32[32,1024]" in line for line in lines) == 4


def test_plan() -> None:
    lines = shown("plan", "LSTM", *FLAGS, "--budget", "4MiB")
    (title,) = (line for line in lines if line.startswith("part"))
    end = title.index("training") + len("training")
    numbers = [
        line[:end].split("  ")[-1].strip()
        for line in lines
        if line.startswith(("xs ", "carry[", "ys, kept", "residuals"))
    ]
    assert len(numbers) >= 4
    # The numbers end below their title's end.
    assert all(re.fullmatch(r"[\d.]+ (B|KiB|MiB)", number) for number in numbers)


def test_tradeoff() -> None:
    lines = shown("tradeoff", "LSTM", *FLAGS, "--rounds", "1")
    rows = [line for line in lines if "ms" in line]
    assert len(rows) >= 4
    assert all(re.search(r"[\d.]+ (B|KiB|MiB) .* [\d.]+ ms ", row) for row in rows)


def test_a_terminal_that_is_too_narrow_wraps_texts_and_no_types(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    row = ("an operation", "float32[2,3]", "a name of many words", "1 KiB")
    Console(width=36).print(Table(("operation", "result", "name", "bytes"), [[row]], 3))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 36
    assert sum("float32[2,3]" in line and "1 KiB" in line for line in lines) == 1
    assert "many" in "".join(lines)


def test_brackets_in_cells_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    Console(width=80).print(Table(("operation", "result"), [[("add", "float32[n,8]")]], 2))
    assert "float32[n,8]" in capsys.readouterr().out
