"""Measure a case with the rnnscan that this process has."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.beyond.accuracy import measure_accuracy
from benchmarks.beyond.bars import beside_the_faster
from benchmarks.beyond.run import time_rows
from benchmarks.measure import check_agreement, prepare_jax, warm_compiler
from benchmarks.result import Result, Runner
from benchmarks.rows import JaxRow
from benchmarks.sweep.case import Case
from benchmarks.sweep.causes import find_cause
from benchmarks.sweep.outcome import LIMIT, Figure, Outcome


ROWS = ("plain", "checkpoint", "rnnscan")
# Rounding grows over thousands of steps. It is an error of rnnscan only if plain autodiff's is much smaller.
ALLOWED_ERROR = 10.0


def measure_case(case: Case, rounds: int, seconds: float, faster: str = "") -> Outcome:
    """Compile, check and time a case. Figures above the limit are measured again, and have a cause.

    Args:
        case: the case.
        rounds: the least number of rounds of a measurement.
        seconds: the time of plain's rounds, if that makes more.
        faster: which one of plain and checkpoint is the faster one, if another version's process has measured it.
    """
    _warm_compiler_once()
    rows = case.rows(ROWS)
    runners = {name: prepare_jax(row, kept=False) for name, row in rows.items()}
    reference = runners["plain"].train()
    if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(reference)):
        return Outcome(case, error="plain's loss or gradients are not finite")
    error = _difference(case, rows, runners["rnnscan"], reference)
    if error:
        return Outcome(case, error=error, wrong=True)
    options: dict[str, Any] = {"rounds": rounds, "seconds": seconds, "report": lambda text: None}
    result = time_rows(runners, **options)
    faster = faster or min(("plain", "checkpoint"), key=result.train_milliseconds)
    first = _figures(result, faster)
    again = _measure_again(first, result, rows, faster, options)
    figures = {what: Figure(figure, again.get(what)) for what, figure in first.items()}
    causes = {
        what: find_cause(case, what, runners, options) if figures[what].value > LIMIT else "noise"
        for what in ("training", "forward")
        if first[what] > LIMIT
    }
    return Outcome(case, faster, result.train_milliseconds(faster), figures, causes, result.others)


@cache
def _warm_compiler_once() -> None:
    warm_compiler()


def _figures(result: Result, faster: str) -> dict[str, float]:
    """The figures. A forward pass without a gradient is the same program with and without `jax.checkpoint`."""
    times = {"training": beside_the_faster(result), "forward": result.forward_ratio("rnnscan")}
    temporary = result.temporary_ratio("rnnscan", faster)
    return times | ({} if temporary is None else {"temporary": temporary}) | _compile_figure(result, faster)


def _compile_figure(result: Result, faster: str) -> dict[str, float]:
    ratio = result.compile_ratio("rnnscan", faster)
    return {} if ratio is None else {"compile": ratio}


def _measure_again(
    first: Mapping[str, float], result: Result, rows: Mapping[str, JaxRow], faster: str, options: Mapping[str, Any]
) -> dict[str, float]:
    """The times above the limit, measured again. The bytes of a program stay the same."""
    above = {what for what, figure in first.items() if figure > LIMIT} - {"temporary"}
    again: dict[str, float] = {}
    if above & {"training", "forward"}:
        again |= _figures(time_rows(result.runners, **options), faster)
    if "compile" in above:
        runners = {row: prepare_jax(rows[row], kept=False) for row in (faster, "rnnscan")}
        again |= _compile_figure(Result(runners), faster)
    return {what: figure for what, figure in again.items() if what in above}


def _difference(case: Case, rows: Mapping[str, JaxRow], runner: Runner, reference: Any) -> str:
    """In what rnnscan's results differ from plain's; empty if by rounding only."""
    try:
        check_agreement("rnnscan", runner.train(), reference, case.tolerance)
    except ArithmeticError as error:
        # float64 tells rounding from an error.
        accuracy = measure_accuracy(rows)
        if not accuracy.single <= ALLOWED_ERROR:
            return f"{error} Its error beside float64 is {accuracy.single:.0f} times the loop's."
    return ""
