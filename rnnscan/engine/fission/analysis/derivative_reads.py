"""What the derivative of a step reads of its values."""

from collections.abc import Collection, Iterable, Iterator

import jax.numpy as jnp

from rnnscan.engine.fission.analysis.cones import Cones
from rnnscan.engine.fission.restore import derives_from_result
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Program, Value, outputs_of, values_of


def read_by_derivatives(program: Program) -> Iterator[Atom]:
    """The values that the derivative of a step in its float inputs reads, with repeats."""
    active = {value for value in program.inputs if jnp.issubdtype(value.dtype, jnp.inexact)}
    for equation in program.equations:
        made = [value for value in equation.outputs if jnp.issubdtype(value.dtype, jnp.inexact)]
        if made and not active.isdisjoint(equation.reads):
            active.update(made)
            yield from _read_by_derivative(equation, active)


def _read_by_derivative(equation: Equation, active: Collection[Atom]) -> Iterable[Atom]:
    traits, inputs = equation.traits, equation.inputs
    if derives_from_result(equation):
        return equation.outputs
    if traits.is_bilinear:
        return [atom for atom, other in zip(inputs, inputs[::-1], strict=True) if other in active]
    linear = traits.linear_in([atom in active for atom in inputs])
    return inputs if linear is None else [atom for atom, own in zip(inputs, linear, strict=True) if not own]


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
    """The cone of each equation: what the derivative of a step need not run if it is given the result.

    Of `h' = tanh(x W + h U), y = h' V` and h' these are all but the last. Of `h' = f * h + g, y = h' V` it is the sum:
    the derivative of the product with f reads f.
    """
    read = dict.fromkeys(values_of(read_by_derivatives(program)))
    return Cones(needed(program.equations, read), read)
