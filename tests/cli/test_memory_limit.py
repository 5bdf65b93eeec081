"""Sizes that cannot fit this machine are refused before they are tried."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import rnnscan as rs
from rnnscan.cli import memory_limit, plan, tradeoff
from rnnscan.cli.cells import example_of
from rnnscan.cli.memory_limit import check_fits, machine_bytes
from rnnscan.nets.calls import run
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.lower_bound import recurrent_output_bytes
from rnnscan.planning.training_step import TrainingStep


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


def test_a_budget_below_the_outputs(rnnscan: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*arguments: object, **options: object) -> None:
        raise AssertionError("the budget was planned for")

    monkeypatch.setattr(plan.rs, "plan", work)
    result = rnnscan("plan", "LSTM", "--budget", "31MiB", "--length", "1000")
    assert result.exit_code == 2
    assert "plan: nothing fits 31 MiB, because the outputs alone take 31.2 MiB. Raise the budget" in result.stderr
    for options in (["--budget", "32MiB"], ["--budget", "31MiB", "--last-only"]):
        result = rnnscan("plan", "LSTM", "--length", "1000", *options)
        assert "the budget was planned for" in str(result.exception)


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(
    "memory",
    [
        rs.Memory(),
        rs.Memory(recompute="all"),
        rs.Memory(recompute="all", segment="sqrt"),
        rs.Memory(recompute="all", segment=(16, 4)),
    ],
    ids=str,
)
def test_every_choice_needs_the_outputs(cell: str, memory: rs.Memory) -> None:
    # Gradients of the wide inputs could hold the outputs if XLA reused the memory of results.
    example = example_of(cell, hidden=8, inputs=32, batch=4, length=64)
    arguments = Arguments(run, example.cell, example.params, example.carry, example.xs, {})
    outputs = recurrent_output_bytes(arguments)
    assert outputs == 64 * 4 * 8 * 4
    assert (TrainingStep(arguments, last_only=False).temporary_bytes(memory) or 0) >= 2 * outputs


@pytest.mark.parametrize("cell", ["MinGRU", "SRU"])
def test_outputs_of_linear_and_parallel_work_do_not_count(cell: str) -> None:
    example = example_of(cell, hidden=8, inputs=8, batch=4, length=64)
    arguments = Arguments(run, example.cell, example.params, example.carry, example.xs, {})
    assert recurrent_output_bytes(arguments) == 0
