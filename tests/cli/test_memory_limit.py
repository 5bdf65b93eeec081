"""Sizes that cannot fit this machine are refused before they are tried."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rnnscan.cli import memory_limit, plan, tradeoff
from rnnscan.cli.cells import example_of
from rnnscan.cli.memory_limit import check_fits, machine_bytes


Command = Callable[..., Result]

HUGE = ["--batch", "1000000", "--length", "100000000"]


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "the call must fit the memory of this machine, " in result.stderr
    assert "needs at least" in result.stderr
    return result.stderr


@pytest.mark.parametrize("arguments", [["plan", "LSTM", "--budget", "1GiB"], ["tradeoff", "LSTM"]])
def test_huge_calls(rnnscan: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    def work(*arguments: object, **options: object) -> None:
        raise AssertionError("the call was tried")

    monkeypatch.setattr(plan.rs, "plan", work)
    monkeypatch.setattr(tradeoff, "measure", work)
    start = time.monotonic()
    message = refused(rnnscan(*arguments, *HUGE))
    assert time.monotonic() - start < 10
    assert "inputs 47683718 GiB, outputs 95367434 GiB, parameters 1.50 MiB" in message
    assert "Lower --batch, --length" in message
    assert "outputs 1.91 GiB" in refused(rnnscan(*arguments, *HUGE, "--last-only"))


def test_a_huge_model(rnnscan: Command, text_file: Path, tmp_path: Path) -> None:
    message = refused(rnnscan("train", text_file, "--hidden", "10000000", "--out", tmp_path / "run"))
    assert "optimizer state" in message
    assert "Lower --hidden" in message
    assert not (tmp_path / "run").exists()


def test_reports_of_huge_shapes_are_made(rnnscan: Command) -> None:
    result = rnnscan("explain", "LSTM", *HUGE)
    assert result.exit_code == 0, result.output
    assert "float32[1000000,1024]" in result.stdout


def test_the_limit_is_the_memory_of_this_machine_or_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    example = example_of("gru", hidden=4, inputs=3, batch=2, length=8)
    floats = 8 * 2 * 3 + 2 * 4 + 2 * 4 + 8 * 2 * 4 + sum(leaf.size for leaf in example.params.values())
    for limit, budget, fits in ((4 * floats, 0, True), (4 * floats - 1, 0, False), (1, 4 * floats, True)):
        monkeypatch.setattr(memory_limit, "machine_bytes", lambda limit=limit: limit)
        if fits:
            check_fits(example, last_only=False, budget=budget)
        else:
            with pytest.raises(ValueError, match=r"needs at least .*inputs 224 B, outputs 288 B, parameters"):
                check_fits(example, last_only=False, budget=budget)
    monkeypatch.setattr(memory_limit, "machine_bytes", lambda: None)
    check_fits(example, last_only=False)


def test_the_memory_of_this_machine_is_known_here() -> None:
    assert (machine_bytes() or 0) > 2**28
