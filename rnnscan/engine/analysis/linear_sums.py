"""Push a sum over the steps down through linear equations."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from rnnscan._util.dtypes import exponents
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.program import Atom, Equation, Value, scatters_into_zeros
from rnnscan.ir.traits import Kind


def summed_operands(equation: Equation, varies: Callable[[Atom], bool]) -> list[bool] | None:
    """The operands whose sums over steps give the sum of the result: of a sum constant ones too, which are multiplied.

    Returns:
        For each operand whether its sum is read, or its value; None where sums do not give the result.
    """
    if equation.kind in (Kind.READ, Kind.WRITE, Kind.SCATTER):
        return None  # The sum of a part takes less than the sum of the whole.
    if widens_range(equation):
        return None  # The sum of all steps may overflow where those of each do not.
    # Of another cast between floats, the sum is rounded once instead of each term.
    return equation.traits.linear_in([varies(atom) for atom in equation.inputs])


def widens_range(equation: Equation) -> bool:
    """Whether an equation casts numbers of a smaller range than that of float32, such as float16, to a wider one."""
    if equation.kind is not Kind.SAME:
        return False
    before, after = (exponents(atom.dtype) for atom in (equation.inputs[0], equation.outputs[0]))
    return 0 < before < min(after, exponents(jnp.float32))


def ends_of_sum(
    atom: Atom, maker: Mapping[Any, Equation], varies: Callable[[Atom], bool], materialized: Collection[Atom] = ()
) -> Iterator[Equation | Value]:
    """Where a sum over steps ends if it is pushed down: at products of two varying values, at rows that are scattered
    into zeros, or at values to stack.

    It stops at values that are stacked already (`materialized`). Each end is yielded once.
    """
    pending, seen = [atom], set()
    while pending:
        atom = pending.pop()
        if not isinstance(atom, Value) or not varies(atom) or atom in seen:
            continue
        seen.add(atom)
        equation = None if atom in materialized else maker.get(atom)
        if equation is not None and summed_operands(equation, varies) is not None:
            pending.extend(reversed(equation.inputs))
        else:
            yield equation if equation is not None and _makes_from_less(equation, maker) else atom


def _makes_from_less(equation: Equation, maker: Mapping[Any, Equation]) -> bool:
    """Whether one equation over all steps makes the sum from its operands at every step."""
    return contraction_of(equation) is not None or scatters_into_zeros(equation, maker)
