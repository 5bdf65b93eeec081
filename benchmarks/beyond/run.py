"""Measure one use."""

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.beyond.accuracy import Accuracy, measure_accuracy
from benchmarks.beyond.rows import use_rows
from benchmarks.beyond.use import Use
from benchmarks.measure import check_agreement, prepare_jax, take_turns
from benchmarks.others import Others
from benchmarks.result import Result, Runner


# The rows that are timed.
TRAINING = ("plain", "checkpoint", "rnnscan", "chunkwise")
FORWARD = ("plain", "rnnscan", "chunkwise")


def run_use(
    use: Use, *, rounds: int, seconds: float, compilations: int, report: Callable[[str], None]
) -> tuple[Result, Accuracy | None]:
    """Compile, check and time the rows of a use. `report` gets the next action in words.

    Returns:
        The measurements, and the accuracy if the bars of the chunkwise form hold for the use.
    """
    rows = use_rows(use.problem())
    runners = {}
    for row, jax_row in rows.items():
        report(f"compiling {row}")
        # That of `rnnscan-all` is not reported.
        runners[row] = prepare_jax(jax_row, compilations=1 if row == "rnnscan-all" else compilations, kept=False)
    reference = runners["plain"].train()
    for row, runner in runners.items():
        report(f"checking {row}")
        check_agreement(row, runner.train(), reference, use.tolerance)
    result = time_rows(runners, rounds=rounds, seconds=seconds, report=report)
    report("measuring the accuracy")
    return result, measure_accuracy(rows) if use.long else None


def time_rows(runners: Mapping[str, Runner], *, rounds: int, seconds: float, report: Callable[[str], None]) -> Result:
    """Time compiled rows in turns."""
    others = Others()
    announce = lambda what, number, of: report(f"{what}, round {number} of {of}")  # noqa: E731
    timed = partial(take_turns, rounds=rounds, seconds=seconds)
    forward = timed(
        {row: runners[row].forward for row in FORWARD if row in runners}, report=partial(announce, "forward")
    )
    train = timed({row: runners[row].train for row in TRAINING if row in runners}, report=partial(announce, "training"))
    return Result(dict(runners), forward, train, others=others.share())
