"""From the operation to blame to a report."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from rnnscan.inside.nonfinite.bodies import Body, Labeled, reached
from rnnscan.inside.nonfinite.dependence import not_finite
from rnnscan.inside.nonfinite.labels import Label
from rnnscan.inside.nonfinite.locate import Blamed, Level
from rnnscan.inside.nonfinite.origins import source_of
from rnnscan.inside.nonfinite.patterns import is_inexact
from rnnscan.inside.nonfinite.report import Direction, Nonfinite
from rnnscan.ir.program import Atom, Equation, Value


def describe_operation(blamed: Blamed, arguments: Sequence[str], results: Sequence[str]) -> Nonfinite:
    """The report of an operation.

    Args:
        blamed: the operation.
        arguments: the places of the function's arguments.
        results: the places of its results.
    """
    level, equation = blamed.levels[-1], blamed.equation
    output = equation.outputs[blamed.result]
    value = level.value(output)
    flows = _flows(blamed.levels, output)
    labeled = _label_after(blamed.levels, flows)
    step, row = _step_and_row(blamed)
    numbers = [level.value(atom) for atom in equation.inputs if _is_number(atom)]
    inexact = [atom for atom in equation.inputs if is_inexact(atom)]
    largest = max(inexact, key=lambda atom: _largest(level.value(atom), blamed.index, output), default=None)
    source = None if largest is None else source_of(blamed.levels, largest, arguments)
    return Nonfinite(
        step=step,
        row=row,
        name=_result_of(blamed.levels[0], flows[0], results) if labeled is None else labeled.label.text,
        direction=_direction(blamed.levels, flows, labeled),
        value=value[blamed.index].item(),
        index=blamed.index,
        primitive=equation.name,
        operands=tuple(_element(number, blamed.index, value.shape) for number in numbers),
        place=equation.origin.place,
        origin=None if source is None else source.place,
        magnitude=None if source is None else source.magnitude,
    )


def describe_argument(place: str, leaf: Any, mask: Any, sizes: tuple[int | None, int | None]) -> Nonfinite:
    """The report of an argument that holds the value.

    Args:
        place: its place among the arguments.
        leaf: the argument.
        mask: the elements to blame.
        sizes: the numbers of steps and of rows; None: it has no such axis. They come first.
    """
    number, where = np.asarray(leaf), np.asarray(mask)
    index = tuple(int(axis) for axis in np.unravel_index(int(where.argmax()), where.shape))
    steps, rows = sizes
    step = None if steps is None else index[0]
    row = None if rows is None else index[0 if steps is None else 1]
    value = number[index].item()
    return Nonfinite(step, row, None, "forward", value, index, None, (), "", place, None)


def _flows(levels: Sequence[Level], output: Value) -> list[Sequence[Value]]:
    """For each level the values of its operation, loop or branch that are the value to blame, or depend on it."""
    flows: list[Sequence[Value]] = [[output]]
    for level, around in zip(reversed(levels[1:]), reversed(levels[:-1]), strict=True):
        reach = reached(level.walk.body.equations[level.position + 1 :], flows[0])
        of_step = [atom in reach for atom in level.walk.body.outputs]
        of_results = around.walk.body.inner[around.position].results_after(of_step, level.walk.body)
        flows.insert(0, [each for each, flag in zip(around.equation.outputs, of_results, strict=True) if flag])
    return flows


def _direction(levels: Sequence[Level], flows: Sequence[Sequence[Value]], labeled: Labeled | None) -> Direction:
    if any(_is_transposed(level.equation) for level in levels):
        return "backward"
    if labeled is not None:
        return "tangent" if labeled.is_tangent else "forward"
    return "backward" if any(map(_is_for_transposed, levels, flows)) else "forward"


def _is_for_transposed(level: Level, start: Sequence[Value]) -> bool:
    """Whether values reach results only through a backward pass: the factors of a derivative."""
    after, outputs = level.walk.body.equations[level.position + 1 :], level.walk.body.outputs
    forward = reached([each for each in after if not _is_transposed(each)], start)
    reach = reached(after, start)
    return any(atom in reach for atom in outputs) and not any(atom in forward for atom in outputs)


def _is_transposed(equation: Equation) -> bool:
    return "transpose(" in equation.origin.scope


def _label_after(levels: Sequence[Level], flows: Sequence[Sequence[Value]]) -> Labeled | None:
    """The label that a value flows into next, in the innermost body that has one."""
    for level, start in zip(reversed(levels), reversed(flows), strict=True):
        reach = reached(level.walk.body.equations[level.position + 1 :], start)
        for labeled in level.walk.body.labels:
            if labeled.position > level.position and labeled.atom in reach:
                return labeled
        if level.inside is not None and level.inside.step is not None and level.walk.body.scan_label is not None:
            return None
    return None


def _result_of(level: Level, start: Sequence[Value], results: Sequence[str]) -> str | None:
    """The first result of the function that is not finite, in running order, that values flow into."""
    order: dict[Atom, int] = {
        output: at for at, each in enumerate(level.walk.body.equations) for output in each.outputs
    }
    reach = reached(level.walk.body.equations[level.position + 1 :], start)
    places = [
        (order.get(atom, 0), place)
        for place, atom in zip(results, level.walk.body.outputs, strict=True)
        if atom in reach and is_inexact(atom) and not_finite(level.value(atom)) is not None
    ]
    return min(places, key=lambda each: each[0], default=(0, None))[1]


def _step_and_row(blamed: Blamed) -> tuple[int | None, int | None]:
    output = blamed.equation.outputs[blamed.result]
    loops = [level for level in blamed.levels if level.inside is not None and level.inside.step is not None]
    labeled = [level for level in loops if level.walk.body.scan_label is not None]
    if not loops:
        return next(
            filter(None, (_outside(label, output, blamed.index) for label in labels_of(blamed.levels[0].walk.body))),
            (None, None),
        )
    outer = (labeled or loops)[0]
    assert outer.inside is not None
    label, step = outer.walk.body.scan_label, outer.inside.step
    rows = None if label is None else label.rows
    if label is not None and step is not None:
        step += label.window.start
        if around := loops[: loops.index(outer)]:  # The last one runs the windows, if a loop does.
            step += label.window.every * _step_of(around[-1])
    inner = blamed.levels[-1]
    varies = inner is not outer or output in reached(
        inner.walk.body.equations, inner.walk.body.inputs[outer.inside.invariant :]
    )
    row = blamed.index[0] if varies and rows is not None and output.shape[:1] == (rows,) else None
    return step, row


def _step_of(loop: Level) -> int:
    assert loop.inside is not None
    assert loop.inside.step is not None
    return loop.inside.step


def _outside(label: Label, output: Value, index: tuple[int, ...]) -> tuple[int | None, int | None] | None:
    """The step and row of a value of all steps."""
    if label.rows is None:
        return None
    return (index[0], index[1]) if output.shape[:2] == (label.steps, label.rows) else None


def labels_of(body: Body) -> list[Label]:
    """A label of each scan of a body, at any depth."""
    inner = [each for loop in body.inner.values() for each in loop.bodies]
    own = [each.scan_label for each in inner if each.scan_label is not None]
    return own + [label for each in inner for label in labels_of(each)]


def _is_number(atom: Any) -> bool:
    return is_inexact(atom) or jnp.issubdtype(atom.dtype, jnp.number) or atom.dtype == bool


def _largest(value: Any, index: tuple[int, ...], output: Value) -> float:
    magnitude = abs(_element(np.asarray(value), index, output.shape))
    return float("inf") if np.isnan(magnitude) else float(magnitude)


def _element(number: Any, index: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """The element of an operand at the place of a result, or else that of the largest magnitude."""
    if number.ndim == len(shape) and all(size in (1, whole) for size, whole in zip(number.shape, shape, strict=True)):
        return np.broadcast_to(number, shape)[index].item()
    if number.size == 0:
        return 0.0
    flat = number.ravel()
    return flat[int(np.abs(flat.astype(complex if np.iscomplexobj(flat) else float)).argmax())].item()
