"""Push a sum over the steps down through linear equations."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from rnnscan.ir.program import Atom, Equation, Value, scatters_into_zeros


# Linear jointly in all operands.
_LINEAR = frozenset(
    {"neg", "transpose", "reshape", "reduce_sum", "broadcast_in_dim", "squeeze", "copy", "slice", "split", "unstack"}
    | {"add", "add_any", "sub", "concatenate", "stack", "pad", "psum_invariant"}
)


def sums_its_operands(equation: Equation) -> bool:
    """Whether the sum of a result over steps is the result of the sums of all operands, constant ones too."""
    return equation.primitive.name in _LINEAR


def passes_sums(equation: Equation, varies: Callable[[Atom], bool]) -> bool:
    """Whether the sum of a result over steps is the result of the sums of the varying operands."""
    primitive, operands = equation.primitive.name, [varies(atom) for atom in equation.inputs]
    if primitive == "convert_element_type":  # In mixed precision, the sum is rounded once instead of each term.
        return all(jnp.issubdtype(atom.dtype, jnp.inexact) for atom in [*equation.inputs, *equation.outputs])
    if primitive == "div":
        return operands == [True, False]
    return primitive in _LINEAR or (primitive in ("mul", "dot_general") and operands.count(True) == 1)


def ends_of_sum(
    atom: Atom, maker: Mapping[Any, Equation], varies: Callable[[Atom], bool], at_hand: Collection[Atom] = ()
) -> Iterator[Equation | Value]:
    """Where a sum over steps ends if it is pushed down: at products of two varying values, at rows that are scattered
    into zeros, or at values to stack.

    It stops at values that are stacked already (`at_hand`). Each end is yielded once.
    """
    to_see, seen = [atom], set()
    while to_see:
        atom = to_see.pop()
        if not isinstance(atom, Value) or not varies(atom) or atom in seen:
            continue
        seen.add(atom)
        equation = None if atom in at_hand else maker.get(atom)
        if equation is not None and passes_sums(equation, varies):
            to_see.extend(reversed(equation.inputs))
        else:
            yield equation if equation is not None and _makes_from_less(equation, maker) else atom


def _makes_from_less(equation: Equation, maker: Mapping[Any, Equation]) -> bool:
    """Whether one equation over all steps makes the sum from its operands at every step."""
    return equation.primitive.name == "dot_general" or scatters_into_zeros(equation, maker)
