"""Checks of what a result may depend on: not on the future, nor on other rows, documents or padding."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from rnnscan.checking.checks import Check, DoesNotApplyError, Part, parts
from rnnscan.checking.compare import Finding, close, found, wide
from rnnscan.checking.loop import reference
from rnnscan.checking.perturb import FILLS, at, either, fill, fills_of, masked, same_gradients, unaffected, zero
from rnnscan.checking.steps import lengths_of, starts_of, valid_of
from rnnscan.checking.trial import Arrays, Size, Trial


def _future(trial: Trial) -> str | None:
    return trial.model.backward


def _earlier(size: Size, step: int) -> np.ndarray:
    return np.broadcast_to(np.arange(size.steps)[:, None] < step, size)


# The longest input that is split at each of its steps.
_EACH_STEP = 16


def _boundaries(size: Size) -> list[int]:
    """Steps at which an input is split into past and future, the last first: all of a short one.

    A longer one is split at the first and the last step, at powers of two and their neighbors, where chunks may begin,
    and at eight steps in between.
    """
    if size.steps <= _EACH_STEP:
        return [*reversed(range(1, size.steps))]
    powers = [1 << power for power in range(size.steps.bit_length())]
    near = {power + offset for power in powers for offset in (-1, 0, 1)}
    spread = {part * size.steps // 9 for part in range(1, 9)}
    return sorted((step for step in {*near, *spread, size.steps - 1} if 0 < step < size.steps), reverse=True)


def the_future_changes_no_value(trial: Trial, size: Size) -> Finding:
    """Other inputs from a step on, and the outputs before it, bit by bit."""
    arrays = trial.arrays(size)
    before = trial.run(arrays)
    # From the end, so that the sentence is about one step that changed.
    until = size.steps
    for step in _boundaries(size):
        xs = fill(trial, arrays.xs, ~_earlier(size, step), "other numbers", "xs")
        after = trial.run(arrays._replace(xs=xs))
        finding = unaffected(
            before.outputs, after.outputs, at(trial, _earlier(size, step), "y"), f"xs at {_span(step, until)} changes"
        )
        if finding.problem:
            return finding
        until = step
    return Finding()


def the_future_has_no_gradient(trial: Trial, size: Size) -> Finding:
    """The gradient of outputs before a step for inputs from it on."""
    arrays = trial.arrays(size)
    cotangents = trial.cotangents(arrays)
    for step in _boundaries(size):
        earlier = _earlier(size, step)
        results = trial.run(arrays, masked(cotangents, at(trial, earlier, "y")))
        finding = zero(results.gradients, at(trial, ~earlier, "xs"), f"y before step {step}")
        if finding.problem:
            return finding
    return Finding()


def _rows(trial: Trial) -> str | None:
    if not trial.has_rows:
        return "inputs without a batch axis"
    return None if trial.size.rows > 1 else "inputs of one row"


def _rows_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    for what in fills_of(trial.given[2]):
        yield what, partial(rows_are_alone, what=what)


def rows_are_alone(trial: Trial, size: Size, *, what: str) -> Finding:
    """Other values in a row, and the values and gradients of the other rows, bit by bit."""
    arrays = trial.arrays(size)
    cotangents = trial.cotangents(arrays)
    for row in range(size.rows):
        others = np.arange(size.rows) != row
        of_steps = np.broadcast_to(others, size)
        kept = masked(cotangents, either(at(trial, of_steps, "y"), at(trial, others, "carry")))
        before = trial.run(arrays, kept)
        xs = fill(trial, arrays.xs, ~of_steps, what, "xs")
        after = trial.run(Arrays(arrays.params, fill(trial, arrays.carry, ~others, what, "carry"), xs), kept)
        cause = f"row {row} of xs and carry changes" if what == "other numbers" else f"row {row} of xs is {what}"
        places = either(at(trial, of_steps, "y", "xs"), at(trial, others, "carry"))
        finding = found(
            unaffected(before.outputs, after.outputs, places, cause),
            zero(
                before.gradients,
                either(at(trial, ~of_steps, "xs"), at(trial, ~others, "carry")),
                f"rows other than {row}",
            ),
            same_gradients(trial, before.gradients, after.gradients, places, cause),
        )
        if finding.problem:
            return finding
    return Finding()


def _documents(trial: Trial) -> str | None:
    return trial.model.lacks("reset")


def _documents_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    for what in fills_of(trial.given[2]):
        yield what, partial(documents_do_not_leak, what=what)
    if trial.model.backward is None or "seq_lengths" in trial.model.options:
        yield "alone", documents_equal_themselves_alone


def documents_of(size: Size) -> list[tuple[int, int, int]]:
    """Packed documents of other lengths in each row: (row, first step, end)."""
    found_documents = []
    for row in range(size.rows):
        bounds = [0, *starts_of(size, row), size.steps]
        found_documents += [(row, start, stop) for start, stop in pairwise(bounds)]
    return found_documents


def _span(start: int, stop: int) -> str:
    return f"step {start}" if stop == start + 1 else f"steps {start} to {stop - 1}"


def _resets(trial: Trial, size: Size) -> dict[str, Any]:
    starts = np.zeros(size, bool)
    for row, start, _ in documents_of(size):
        starts[start, row] = start > 0
    return trial.resets(size, starts)


def documents_do_not_leak(trial: Trial, size: Size, *, what: str) -> Finding:
    """Other values outside of a document, and its values and gradients, bit by bit."""
    arrays, options = trial.arrays(size), _resets(trial, size)
    cotangents = trial.cotangents(arrays)
    both_directions = trial.model.backward is not None
    for row, start, stop in documents_of(size):
        inside = np.zeros(size, bool)
        inside[start:stop, row] = True
        of_row = np.broadcast_to(np.arange(size.rows) == row, size)
        within, of_carry = at(trial, inside, "y", "xs"), np.zeros(size.rows, bool)
        of_carry[row] = stop == size.steps and not both_directions
        kept = masked(cotangents, either(at(trial, inside, "y"), at(trial, of_carry, "carry")))
        before = trial.run(arrays, kept, options=options)
        carry = arrays.carry
        if start > 0 and not both_directions:
            carry = fill(trial, carry, of_row[0], what, "carry")
        xs = fill(trial, arrays.xs, of_row & ~inside, what, "xs")
        after = trial.run(Arrays(arrays.params, carry, xs), kept, options=options)
        document = f"the document of {_span(start, stop)}, row {row},"
        cause = f"xs outside of it {'changes' if what == 'other numbers' else f'is {what}'}"
        finding = found(
            unaffected(before.outputs, after.outputs, either(within, at(trial, of_carry, "carry")), cause),
            zero(before.gradients, at(trial, ~inside, "xs"), "the document"),
            same_gradients(trial, before.gradients, after.gradients, within, cause),
        )
        if what == "other numbers" and not finding.problem:
            finding = close(
                of_params(after.gradients), of_params(before.gradients), trial.tolerance, "before", gradients=True
            )
        if finding.problem:
            return Finding(np.inf, f"in {document} {finding.problem}")
    return Finding()


def of_params(gradients: dict[str, Any]) -> dict[str, Any]:
    """The gradients of the parameters."""
    return {name: value for name, value in gradients.items() if name.startswith("params")}


def documents_equal_themselves_alone(trial: Trial, size: Size) -> Finding:
    """Each document, and the same document alone from the initial carry."""
    start_carry = trial.start(size)
    arrays = trial.arrays(size)._replace(carry=start_carry)
    options = _resets(trial, size)
    cotangents = trial.cotangents(arrays)
    packed = trial.run(arrays, masked(cotangents, at(trial, np.ones(size, bool), "y")), options=options)
    findings = []
    for row, start, stop in documents_of(size):
        count = stop - start
        of_row = np.arange(size.rows) == row
        first = np.broadcast_to(of_row, size) & (np.arange(size.steps)[:, None] < count)
        xs = jax.tree.map(lambda leaf, start=start: np.roll(leaf, -start, axis=0), arrays.xs)
        rolled = {name: np.roll(value, -start, axis=0) for name, value in cotangents.items() if name.startswith("y")}
        kept = {**{n: np.zeros_like(v) for n, v in cotangents.items()}, **masked(rolled, at(trial, first, "y"))}
        # A function may need an argument for documents; a net that runs backward needs to know where they end.
        lengths = np.full(size.rows, count)
        alone_options = trial.lengths(lengths) if trial.model.backward else {}
        alone = trial.run(arrays._replace(xs=xs), kept, options=alone_options)

        def of(named: dict[str, Any], root: str, begin: int, row: int = row, count: int = count) -> dict[str, Any]:
            kept = {name: value[begin : begin + count] for name, value in named.items() if name.split("/")[0] == root}
            return {name: v[:, row : row + 1] if trial.has_rows else v for name, v in kept.items()}

        than = "alone"
        pairs = [(packed.outputs, alone.outputs, "y", False), (packed.gradients, alone.gradients, "xs", True)]
        for together, apart, root, gradients in pairs:
            finding = close(of(together, root, start), of(apart, root, 0), trial.tolerance, than, gradients=gradients)
            if finding.problem:
                where = f"in the document of {_span(start, stop)}, row {row}, counted from its start,"
                return Finding(finding.worst, f"{where} {finding.problem}")
            findings.append(finding)
    return found(*findings)


def _padding(trial: Trial) -> str | None:
    return trial.model.lacks("seq_lengths")


def _padding_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    for what in fills_of(trial.given[2]):
        yield what, partial(padding_reaches_nothing, what=what)
    if trial.model.kind == "module":
        yield "gradients of padded steps", _not_in_flax
    if trial.model.backward is None:
        yield "valid steps", valid_steps_are_those_without_padding


def _not_in_flax(trial: Trial, size: Size) -> Finding:
    raise DoesNotApplyError("gradients with NaN in padding: modules of Flax run padded steps and return their outputs")


def padding_reaches_nothing(trial: Trial, size: Size, *, what: str) -> Finding:
    """Other values in padded inputs, and all values and gradients of valid steps, bit by bit."""
    arrays, lengths = trial.arrays(size), lengths_of(size)
    valid, options = valid_of(size, lengths), trial.lengths(lengths)
    every = np.ones(size.rows, bool)
    kept = masked(trial.cotangents(arrays), either(at(trial, valid, "y"), at(trial, every, "carry")))
    before = trial.run(arrays, kept, options=options)
    xs = fill(trial, arrays.xs, ~valid, what, "xs")
    after = trial.run(arrays._replace(xs=xs), kept, options=options)
    cause = f"padding of xs {'changes' if what == 'other numbers' else f'is {what}'}"
    places = either(at(trial, valid, "y", "xs"), at(trial, every, "carry"))
    all_places = either(places, lambda name, leaf: np.ones(leaf.shape, bool) if name.startswith("params") else None)
    values = unaffected(before.outputs, after.outputs, places, cause)
    if trial.model.kind == "module" and what != FILLS[0]:
        return values
    return found(
        values,
        zero(before.gradients, at(trial, ~valid, "xs"), "valid steps"),
        zero(after.gradients, at(trial, ~valid, "xs"), f"valid steps, where {cause},"),
        same_gradients(trial, before.gradients, after.gradients, all_places, cause),
    )


def valid_steps_are_those_without_padding(trial: Trial, size: Size) -> Finding:
    """Valid steps of a run with lengths, and the same steps without; its carry, and the one after the last of them."""
    arrays, lengths = trial.arrays(size), lengths_of(size)
    padded = trial.run(arrays, options=trial.lengths(lengths))
    whole = trial.run(arrays)
    valid = valid_of(size, lengths)
    ys = [{n: v for n, v in each.outputs.items() if n.startswith("y")} for each in (padded, whole)]
    actual, expected = (masked(each, at(trial, valid, "y")) for each in ys)
    finding = close(actual, expected, trial.tolerance, "without padding")
    if finding.problem or "carry" not in trial.model.options or not trial.has_rows:
        return finding
    carries = [jax.tree.leaves(carry) for carry in reference(trial, size).carries]
    last = {name: value for name, value in padded.outputs.items() if name.startswith("carry")}
    for row, length in enumerate(lengths):
        after = dict(zip(last, carries[length], strict=True))
        actual, expected = (
            {name: wide(v)[row] for name, v in each.items() if v.shape[:1] == (size.rows,)} for each in (last, after)
        )
        finding = found(finding, close(actual, expected, trial.tolerance, f"after {length} steps of row {row}"))
    return finding


FUTURE = Check(
    "future",
    "No output reads a later input.",
    _future,
    parts(values=the_future_changes_no_value, gradients=the_future_has_no_gradient),
    Size(2, 1),
)
ROWS = Check("rows", "No row reads another row.", _rows, _rows_parts, Size(1, 2))
DOCUMENTS = Check("documents", "No packed document reads another.", _documents, _documents_parts, Size(2, 1))
PADDING = Check("padding", "Padding reaches no value and no gradient.", _padding, _padding_parts, Size(2, 1))
