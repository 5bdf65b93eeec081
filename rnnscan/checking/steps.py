"""Checks of time: steps, windows and the reversed order."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from rnnscan.checking.checks import Check, Part, parts
from rnnscan.checking.compare import Finding, close, found
from rnnscan.checking.loop import reference
from rnnscan.checking.randomness import is_random
from rnnscan.checking.trial import Arrays, Results, Size, Trial


def _whole(trial: Trial) -> str | None:
    return trial.model.lacks("carry") or _runs_backward(trial)


def _runs_backward(trial: Trial) -> str | None:
    return trial.model.backward


def equals_its_steps(trial: Trial, size: Size) -> Finding:
    """A run, and a Python loop over its steps."""
    results, expected = trial.run(trial.arrays(size)), reference(trial, size).results
    return compare(trial, results, expected, "step by step")


def compare(trial: Trial, results: Results, expected: Results, than: str) -> Finding:
    """Compare values and gradients to rounding."""
    return found(
        close(results.outputs, expected.outputs, trial.tolerance, than),
        close(results.gradients, expected.gradients, trial.tolerance, than, gradients=True),
    )


def _windows(trial: Trial) -> Iterator[tuple[str, Part]]:
    yield "windows", equal_the_whole
    if {"key", "first_step"} <= trial.model.options and is_random(trial):
        yield "windows with a key", equal_the_whole_with_a_key


def equal_the_whole(trial: Trial, size: Size) -> Finding:
    """Two windows with the carry handed on, resets included, and the whole."""
    options: dict[str, Any] = {}
    if "reset" in trial.model.options:
        options = trial.resets(size, resets_of(size))
    return _in_windows(trial, size, options, {})


def equal_the_whole_with_a_key(trial: Trial, size: Size) -> Finding:
    """The same with random choices: those of a step depend on its number."""
    key = jax.random.key(trial.seed)
    return _in_windows(trial, size, {"key": key}, {"first_step": np.int32(size.steps // 2)})


def _in_windows(trial: Trial, size: Size, options: dict[str, Any], of_second: dict[str, Any]) -> Finding:
    arrays = trial.arrays(size)
    half = size.steps // 2
    cotangents = trial.cotangents(arrays)
    first_number = {name: np.int32(0) for name in of_second}
    expected = trial.run(arrays, cotangents, options={**options, **first_number})

    def run(carry: Any, start: int, stop: int, of_carry: dict[str, Any], numbers: dict[str, Any]) -> Results:
        window = {name: value[start:stop] if name == "reset" else value for name, value in options.items()}
        xs = jax.tree.map(lambda leaf: leaf[start:stop], arrays.xs)
        of_ys = {name: value[start:stop] for name, value in cotangents.items() if name.startswith("y")}
        return trial.run(Arrays(arrays.params, carry, xs), {**of_ys, **of_carry}, options={**window, **numbers})

    of_carry = _carry_of(cotangents)
    zeros = {name: np.zeros_like(value) for name, value in of_carry.items()}
    between = run(arrays.carry, 0, half, zeros, first_number).carry
    second = run(between, half, size.steps, of_carry, of_second)
    first = run(arrays.carry, 0, half, _carry_of(second.gradients), first_number)
    outputs = _carry_of(second.outputs) | _joined(first.outputs, second.outputs, "y")
    summed = {
        name: value + second.gradients[name] for name, value in first.gradients.items() if name.startswith("params")
    }
    gradients = summed | _carry_of(first.gradients) | _joined(first.gradients, second.gradients, "xs")
    windows = Results(outputs, gradients, second.carry)
    return compare(trial, windows, expected, "in the whole")


def _carry_of(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if name.startswith("carry")}


def _joined(first: dict[str, Any], second: dict[str, Any], root: str) -> dict[str, Any]:
    names = [name for name in first if name.split("/")[0] == root]
    return {name: np.concatenate([first[name], second[name]]) for name in names}


def resets_of(size: Size) -> np.ndarray:
    """Where documents begin, other steps in each row, and not at the first step."""
    starts = np.zeros(size, bool)
    for row in range(size.rows):
        starts[starts_of(size, row), row] = True
    return starts


# Up to this step documents are short.
_DENSE = 16


def starts_of(size: Size, row: int) -> list[int]:
    """Where the documents of a row begin, but the first: at each third step, each fourth and so on, then twice as far.

    So there are short and long documents, some begin at powers of two, and their number grows slowly with the steps.
    """
    every = max(1, min(row + 3, size.steps - 1))
    starts = [*range(every, min(size.steps, _DENSE + 1), every)]
    while starts and 2 * starts[-1] < size.steps and size.steps > _DENSE:
        starts.append(2 * starts[-1])
    return starts


def lengths_of(size: Size) -> np.ndarray:
    """The lengths of rows that all have padding."""
    fewer = max(3, 3 * size.steps // 8)
    return np.maximum(size.steps - 1 - fewer * np.arange(size.rows), 0).astype(np.int32)


def _reverse(trial: Trial) -> str | None:
    lacking = trial.model.lacks("seq_lengths")
    if lacking is None and "reverse" not in trial.model.options and trial.model.backward is None:
        return f"a {trial.model.kind} that runs forward only"
    return lacking


def _reverse_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    if "reverse" in trial.model.options:
        yield "a reversed run", reversed_by_length
    else:
        yield "rows of their own lengths", rows_of_their_own_lengths


def reversed_by_length(trial: Trial, size: Size) -> Finding:
    """A reversed run with lengths, and a forward run of each row's valid steps in reverse order."""
    arrays, lengths = trial.arrays(size), lengths_of(size)
    cotangents = mask_outputs(trial.cotangents(arrays), valid_of(size, lengths))
    options = trial.lengths(lengths)
    backward = trial.run(arrays, cotangents, options=options, reverse=True)
    order = _reversed_order(size, lengths)
    flipped = Arrays(arrays.params, arrays.carry, jax.tree.map(lambda leaf: _take(trial, leaf, order), arrays.xs))
    of_flipped = {name: _take(trial, v, order) if name.startswith("y") else v for name, v in cotangents.items()}
    forward = trial.run(flipped, of_flipped, options=options)
    outputs = {name: _take(trial, v, order) if name.startswith("y") else v for name, v in forward.outputs.items()}
    gradients = {name: _take(trial, v, order) if name.startswith("xs") else v for name, v in forward.gradients.items()}
    valid = valid_of(size, lengths)
    return compare(
        trial,
        Results(mask_outputs(backward.outputs, valid), backward.gradients, None),
        Results(mask_outputs(outputs, valid), gradients, None),
        "for each row reversed by its length",
    )


def rows_of_their_own_lengths(trial: Trial, size: Size) -> Finding:
    """A run with lengths, and a run of each row alone without padding."""
    arrays, lengths = trial.arrays(size), lengths_of(size)
    start = Arrays(arrays.params, trial.start(size), arrays.xs)
    cotangents = {
        name: value if name.startswith("y") else np.zeros_like(value)
        for name, value in mask_outputs(trial.cotangents(arrays), valid_of(size, lengths)).items()
    }
    padded = trial.run(start, cotangents, options=trial.lengths(lengths))
    findings = []
    for row, length in enumerate(lengths):
        if length == 0:
            continue
        xs = jax.tree.map(lambda leaf, end=length: leaf[:end], arrays.xs)
        of_ys = {name: value[:length] if name.startswith("y") else value for name, value in cotangents.items()}
        alone = trial.run(Arrays(arrays.params, start.carry, xs), of_ys)

        def of_row(named: dict[str, Any], root: str, row: int = row, length: int = length) -> dict[str, Any]:
            kept = {name: value for name, value in named.items() if name.split("/")[0] == root}
            return {name: v[:length, row : row + 1] if trial.has_rows else v[:length] for name, v in kept.items()}

        than = "without padding"
        findings += [
            close(of_row(padded.outputs, "y"), of_row(alone.outputs, "y"), trial.tolerance, than),
            close(of_row(padded.gradients, "xs"), of_row(alone.gradients, "xs"), trial.tolerance, than, gradients=True),
        ]
    return found(*findings)


def valid_of(size: Size, lengths: np.ndarray) -> np.ndarray:
    """The valid steps of rows, `(T, N)`."""
    return np.arange(size.steps)[:, None] < lengths


def mask_outputs(named: dict[str, Any], valid: np.ndarray) -> dict[str, Any]:
    """Values by place, with zeros in y where a step is not valid."""
    return {name: mask_steps(value, valid) if name.startswith("y") else value for name, value in named.items()}


def mask_steps(leaf: Any, valid: np.ndarray) -> Any:
    """A leaf `(T, N, ...)`, or `(T, ...)` of one row, with zeros where a step is not valid."""
    if leaf.shape[:2] != valid.shape:
        valid = valid[:, 0]
    if leaf.shape[: valid.ndim] != valid.shape:
        return leaf
    return np.where(valid.reshape(*valid.shape, *[1] * (leaf.ndim - valid.ndim)), leaf, np.zeros((), leaf.dtype))


def _reversed_order(size: Size, lengths: np.ndarray) -> np.ndarray:
    """The step that each step comes from, `(T, N)`: valid steps in reverse, then padding as it was."""
    steps = np.arange(size.steps)[:, None]
    return np.where(steps < lengths, lengths - 1 - steps, steps)


def _take(trial: Trial, leaf: Any, order: np.ndarray) -> Any:
    if not trial.has_rows:
        return leaf[order[:, 0]]
    return np.take_along_axis(leaf, order.reshape(*order.shape, *[1] * (leaf.ndim - 2)), axis=0)


STEPS = Check("steps", "A run equals a Python loop over its steps.", _whole, parts(steps=equals_its_steps), Size(1, 1))
WINDOWS = Check("windows", "Windows with the carry handed on equal the whole.", _whole, _windows, Size(2, 1))
REVERSE = Check("reverse", "A reversed run reverses each row by its length.", _reverse, _reverse_parts, Size(2, 1))
