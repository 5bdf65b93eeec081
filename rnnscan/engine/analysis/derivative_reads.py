"""The values of a step that its derivative reads."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.activity import tangents_if_any
from rnnscan.engine.analysis.cones import Cones
from rnnscan.engine.analysis.restore import derives_from_result
from rnnscan.engine.analysis.saving_calls import read_by_derivative, saves_residuals
from rnnscan.ir.dataflow import between, needed
from rnnscan.ir.leaves import places, replace_at, split_list
from rnnscan.ir.program import Atom, Equation, Program, Value, inputs_of, outputs_of, values_of


def read_by_derivatives(program: Program) -> Iterator[Atom]:
    """The values that the derivative of a step in its float inputs reads, with repeats.

    What reaches no result but by a `stop_gradient` has no cotangent.
    """
    active = set(filter(is_float, program.inputs))
    passing = [equation for equation in program.equations if equation.name != "stop_gradient"]
    for equation in needed(passing, program.outputs):
        float_outputs = [*filter(is_float, equation.outputs)]
        if float_outputs and not active.isdisjoint(equation.reads):
            active.update(float_outputs)
            yield from _read_by_derivative(equation, active)


def _read_by_derivative(equation: Equation, active: Collection[Atom]) -> Iterable[Atom]:
    traits, inputs = equation.traits, equation.inputs
    if derives_from_result(equation):
        return equation.outputs
    if saves_residuals(equation):
        return read_by_derivative(equation)
    if equation.name == "custom_jvp_call":
        atoms = (*inputs, *equation.outputs)
        return [atom for atom, is_read in zip(atoms, _read_by_rule(equation), strict=True) if is_read]
    if traits.is_bilinear:
        return [atom for atom, other in zip(inputs, inputs[::-1], strict=True) if other in active]
    linear = traits.linear_in([atom in active for atom in inputs])
    if linear is None:
        return (*inputs, *equation.outputs) if traits.derivative_reads == "both" else inputs
    return [atom for atom, is_linear in zip(inputs, linear, strict=True) if not is_linear]


def derivative_of(equation: Equation) -> Program | None:
    """The program `(*operands, *tangents of floats) -> (*results, *their tangents)`; None if a rule rejects that."""
    traced = tangents_if_any(equation, [*map(is_float, equation.inputs)])
    return None if traced is None else traced[0]


def vjp_of_floats(equation: Equation, operands: Sequence[Any], floats: Sequence[int]) -> tuple[list[Any], Any]:
    """The results of an equation, and their vjp for the operands at some places, as `jax.vjp`."""

    def of_floats(*leaves: Any) -> list[Any]:
        return equation.evaluate(*replace_at(operands, floats, leaves))

    return jax.vjp(of_floats, *(operands[index] for index in floats))


def all_cotangents(equation: Equation, of_floats: Iterable[Any]) -> list[Any]:
    """The cotangents of all results of an equation, from those of the results that are floats."""
    none = [np.zeros(atom.shape, jax.dtypes.float0) for atom in equation.outputs]
    return replace_at(none, places([*map(is_float, equation.outputs)]), [*of_floats])


def _read_by_rule(equation: Equation) -> Sequence[bool]:
    """Whether the derivative rule of an equation reads each of its inputs and results."""
    program = derivative_of(equation)
    if program is None:  # A rule may refuse the tangent of an operand that has none in this scan.
        return [*(True for _ in equation.inputs), *(False for _ in equation.outputs)]
    results, tangents = split_list(program.stacked, [len(equation.outputs)])
    read = {*inputs_of(between(program.equations, values_of(results), tangents)), *tangents}
    return [atom in read for atom in (*program.known[: len(equation.inputs)], *results)]


def read_first(program: Program, saved: Collection[Value]) -> tuple[Value, ...]:
    """The values among saved ones that the derivative of a step reads, or computes others from that it reads.

    As in `jax.checkpoint`: a value that only makes other saved values is not saved. Nor are inputs and the new carry,
    which are known in any case.
    """
    known = {*program.inputs, *program.new_carry}
    maker, first = program.maker, dict[Value, None]()
    waiting, seen = values_of(read_by_derivatives(program)) if saved else [], set[Value]()
    while waiting:
        value = waiting.pop()
        if value in seen or value in known:
            continue
        seen.add(value)
        if value in saved:
            first[value] = None
        else:
            waiting.extend(maker[value].reads)
    return tuple(value for value in outputs_of(program.equations) if value in first)


def cones_of_derivative(program: Program) -> Cones:
    """The cone of each equation: the work that the derivative of a step is spared if the result is kept.

    Of `h' = tanh(x W + h U), y = h' V` and h' these are all but the last. Of `h' = f * h + g, y = h' V` it is the sum:
    the derivative of the product with f reads f.
    """
    read = dict.fromkeys(values_of(read_by_derivatives(program)))
    return Cones(needed(program.equations, read), read)
