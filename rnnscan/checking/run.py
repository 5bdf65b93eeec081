"""Run one check, and find the smallest input that shows a fault."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from rnnscan.checking.checks import Check, DoesNotApplyError, Part
from rnnscan.checking.compare import Finding
from rnnscan.checking.report import Outcome
from rnnscan.checking.trial import Size, Trial
from rnnscan.checking.types import TYPES


def outcome_of(check: Check, trial: Trial) -> Outcome:
    """Run a check at the trial's size; if it does not hold, at smaller ones."""
    with jax.enable_x64(jnp.dtype(trial.dtype) == jnp.float64):
        reason = check.reason(trial)
        if trial.broken and check is not TYPES:
            reason = "a model that does not run, because its steps do not keep the types of the carry"
        if reason is not None:
            return Outcome(check.name, "does not apply", reason)
        worst, reasons, ran = 0.0, [], 0
        for _, part in check.parts(trial):
            try:
                finding = _run(part, trial, trial.size)
            except DoesNotApplyError as error:
                reasons.append(str(error))
                continue
            ran += 1
            if finding.problem:
                size, smallest = _shrink(check, part, trial, finding)
                return Outcome(check.name, "does not hold", f"{_in_words(size, trial)}: {smallest.problem}")
            worst = max(worst, finding.worst)
        if not ran:
            return Outcome(check.name, "does not apply", reasons[0] if reasons else "nothing to check")
        return Outcome(
            check.name, "holds", "; ".join([_largest(check, worst), *(f"not checked: {each}" for each in reasons)])
        )


def _run(part: Part, trial: Trial, size: Size) -> Finding:
    """A part's finding. An error of the model is one, too."""
    try:
        return part(trial, size)
    except DoesNotApplyError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        return Finding(float("inf"), f"{type(error).__name__}: {first}")


def _shrink(check: Check, part: Part, trial: Trial, finding: Finding) -> tuple[Size, Finding]:
    """The smallest size at which a part fails in the same way: fewest rows, then fewest steps."""
    size = trial.size
    for sizes in (_fewer_rows, _fewer_steps):
        for smaller in sizes(check, size):
            try:
                found = part(trial, smaller)
            except Exception:  # Such as a model for one number of rows: it cannot be made smaller this way.
                continue
            if found.problem:
                size, finding = smaller, found
                break
    return size, finding


def _fewer_rows(check: Check, size: Size) -> Iterator[Size]:
    yield from (Size(size.steps, rows) for rows in range(check.least.rows, size.rows))


def _fewer_steps(check: Check, size: Size) -> Iterator[Size]:
    yield from (Size(steps, size.rows) for steps in range(check.least.steps, size.steps))


def _in_words(size: Size, trial: Trial) -> str:
    steps = f"{size.steps} step{'s' * (size.steps != 1)}"
    return f"{steps}, {size.rows} row{'s' * (size.rows != 1)}" if trial.has_rows else steps


def _largest(check: Check, worst: float) -> str:
    return f"{check.measure} {worst:.1g}" if worst else "no difference"
