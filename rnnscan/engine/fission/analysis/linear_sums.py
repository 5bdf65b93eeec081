"""How far a sum over the steps can be pushed down through linear equations."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from rnnscan.engine.fission.program import Atom, Equation, Value


# Linear in all operands together.
_LINEAR = frozenset(
    {"neg", "transpose", "reshape", "reduce_sum", "broadcast_in_dim", "squeeze", "copy", "slice", "split", "unstack"}
    | {"add", "add_any", "sub", "concatenate", "stack", "pad"}
)


def sums_its_operands(equation: Equation) -> bool:
    """Whether the sum over steps of a result takes the sums of all operands, of those that do not vary too."""
    return equation.primitive.name in _LINEAR


def passes_sums(equation: Equation, varies: Callable[[Atom], bool]) -> bool:
    """Whether the sum over steps of a result is the result of the sums of what varies among the operands."""
    primitive, operands = equation.primitive.name, [varies(atom) for atom in equation.inputs]
    if primitive == "convert_element_type":  # Of mixed precision: a sum is rounded once where each term was.
        return all(jnp.issubdtype(atom.dtype, jnp.inexact) for atom in [*equation.inputs, *equation.outputs])
    if primitive == "div":
        return operands == [True, False]
    return primitive in _LINEAR or (primitive in ("mul", "dot_general") and operands.count(True) == 1)


def ends_of_sum(
    atom: Atom, maker: Mapping[Any, Equation], varies: Callable[[Atom], bool], at_hand: Collection[Value] = ()
) -> Iterator[Equation | Value]:
    """Where a sum over steps can be pushed down to: products of two values that vary, or values to be stacked.

    Not beyond values that are at hand, stacked. Each is found once, on however many ways it is reached.
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
            yield equation if equation is not None and equation.primitive.name == "dot_general" else atom
