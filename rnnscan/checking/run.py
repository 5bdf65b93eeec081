"""Run one check, and find the smallest input that shows a fault."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, takewhile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.checking.checks import Check, DoesNotApplyError, Part
from rnnscan.checking.compare import Finding
from rnnscan.checking.report import Outcome
from rnnscan.checking.trial import FEW, Size, Trial
from rnnscan.checking.types import TYPES


def outcome_of(check: Check, trial: Trial) -> Outcome:
    """Run a check at the trial's size; if it does not hold, at smaller ones."""
    with jax.enable_x64(jnp.dtype(trial.dtype) == jnp.float64):
        reason = check.reason(trial)
        if trial.broken and check is not TYPES:
            reason = "a model that does not run, because its steps do not keep the types of the carry"
        if reason is not None:
            return Outcome(check.name, "does not apply", reason)
        if not check.is_long and trial.short is not None:
            trial = trial.at_short_size()
        worst, reasons, ran = 0.0, [], 0
        for _, part in check.parts(trial):
            try:
                finding = _run(part, trial, trial.size)
            except DoesNotApplyError as error:
                reasons.append(str(error))
                continue
            ran += 1
            if finding.problem:
                smallest = _shrink(check, part, trial, finding)
                return Outcome(check.name, "does not hold", f"{smallest.size}: {smallest.finding.problem}")
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


class _Failure(NamedTuple):
    """The size of an input that shows a fault, in words, and what it shows."""

    size: str
    finding: Finding


def _shrink(check: Check, part: Part, trial: Trial, finding: Finding) -> _Failure:
    """The smallest input for which a part fails: fewest rows, then fewest steps, then fewest features."""
    size = trial.size
    for rows in range(check.least.rows, size.rows):
        smaller_finding = _try(part, trial, Size(size.steps, rows))
        if smaller_finding is not None:
            size, finding = Size(size.steps, rows), smaller_finding
            break
    size, finding = _fewest_steps(check, part, trial, size, finding)
    for features, narrower in _fewer_features(trial):
        smaller_finding = _try(part, narrower, size)
        if smaller_finding is not None:
            return _Failure(f"{_in_words(size, trial)}, {_count(features, 'feature')}", smaller_finding)
    return _Failure(_in_words(size, trial), finding)


def _fewest_steps(check: Check, part: Part, trial: Trial, size: Size, finding: Finding) -> tuple[Size, Finding]:
    """The fewest steps that show a fault: one by one where they are few, then doubled, then by bisection.

    Each number of steps is a program to compile. Bisection takes it that more steps show the fault too.
    """
    passed, failed = 0, size.steps
    few = range(check.least.steps, min(FEW, size.steps - 1) + 1)
    doubled = takewhile(lambda steps: steps < size.steps, (FEW << power for power in count(1)))
    for steps in chain(few, doubled):
        smaller = _try(part, trial, Size(steps, size.rows))
        if smaller is not None:
            failed, finding = steps, smaller
            break
        passed = steps
    while failed > FEW and failed - passed > 1:
        steps = (passed + failed) // 2
        smaller = _try(part, trial, Size(steps, size.rows))
        if smaller is None:
            passed = steps
        else:
            failed, finding = steps, smaller
    return Size(failed, size.rows), finding


def _try(part: Part, trial: Trial, size: Size) -> Finding | None:
    """The finding of a part that fails at a smaller size."""
    try:
        finding = part(trial, size)
    except Exception:  # Such as a model for one number of rows: it cannot be made smaller this way.
        return None
    return finding if finding.problem else None


def _fewer_features(trial: Trial) -> Iterator[tuple[int, Trial]]:
    """The same model with new parameters for fewer input features, if it makes its own."""
    params, carry, xs = trial.given
    leaves, structure = jax.tree.flatten(xs)
    if trial.model.init is None or len(leaves) != 1 or len(leaves[0].shape) < len(trial.size) + 1:
        return
    *shape, most = leaves[0].shape
    features = 1
    while features < most:
        narrow = jax.ShapeDtypeStruct((*shape, features), leaves[0].dtype)
        try:
            params = jax.tree.map(np.asarray, trial.model.init(features))
        except Exception:  # Such as a cell with one unit for each feature.
            return
        yield features, replace(trial, given=(params, carry, jax.tree.unflatten(structure, [narrow])))
        features *= 2


def _in_words(size: Size, trial: Trial) -> str:
    steps = _count(size.steps, "step")
    return f"{steps}, {_count(size.rows, 'row')}" if trial.has_rows else steps


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _largest(check: Check, worst: float) -> str:
    return check.measure.format(worst) if worst else "no difference"
