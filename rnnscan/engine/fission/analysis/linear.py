"""Linear recurrences: `c' = a * c + b`, elementwise, with `a` and `b` free of c."""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp

from rnnscan.engine.fission.analysis.components import Components
from rnnscan.engine.fission.program import Atom, Equation, Value, needed


_SUMS = frozenset({"add", "add_any", "sub"})
_UPDATES = frozenset({"dynamic_update_slice", "scatter", "scatter-add"})
_MOVES = frozenset(
    {"broadcast_in_dim", "transpose", "slice", "split", "concatenate", "squeeze", "reshape", "reduce_sum"}
    | {"stack", "tile", "unstack"}
)
_SAME = frozenset({"neg", "copy", "convert_element_type", "stop_gradient"})
# Linear in all operands together.
LINEAR = _SUMS | _MOVES | _SAME


def is_linear(equations: Iterable[Equation], leaf: Value, new_leaf: Atom, *, updates: bool = False) -> bool:
    """Whether `new_leaf = a * leaf + b`, elementwise, by the equations between the two.

    Padding and resets keep the form: they select by a predicate that is free of the leaf. With `updates`, so does
    writing values that are free of the leaf into a part of it, where a is 0, or adding them, where it is 1.
    """
    dependent = {leaf}
    for equation in equations:
        operands = [atom in dependent for atom in equation.inputs]
        if not any(operands):
            continue
        result = equation.outputs[0]
        updated = updates and equation.primitive.name in _UPDATES and not any(operands[1:])
        linear = updated or _is_linear_in(equation, operands)
        if not linear or result.shape != leaf.shape or not jnp.issubdtype(result.dtype, jnp.number):
            return False
        dependent.update(equation.outputs)
    return new_leaf in dependent


def are_linear(equations: Iterable[Equation], leaves: Iterable[Value], new_leaves: Iterable[Atom]) -> bool:
    """Whether new leaves that are elementwise functions of the leaves are linear in them, all together."""
    dependent: set[Atom] = set(leaves)
    for equation in equations:
        operands = [atom in dependent for atom in equation.inputs]
        if any(operands):
            moves = equation.primitive.name in _MOVES
            is_number = jnp.issubdtype(equation.outputs[0].dtype, jnp.inexact)
            if not is_number or not (moves or _is_linear_in(equation, operands)):
                return False
            dependent.update(equation.outputs)
    return dependent.issuperset(new_leaves)


def _is_linear_in(equation: Equation, operands: Sequence[bool]) -> bool:
    """Whether an elementwise operation is linear in the operands that are marked."""
    primitive = equation.primitive.name
    return (
        primitive in _SUMS | _SAME
        or (primitive == "mul" and operands.count(True) == 1)
        or (primitive == "div" and not operands[1])
        or (primitive == "select_n" and not operands[0])
    )


def linearly_recomputable(
    equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom], *, candidates: Sequence[int]
) -> list[int]:
    """Find carry leaves that need not be kept, because they follow from the others by linear recurrences.

    For example the c of an LSTM: if h is known at every step, so are the gates, and `c' = f * c + i * g` is cheap.
    Leaves are tried in order. A leaf is left out if all loops among the left-out leaves are linear.

    Args:
        equations: one step, in order.
        carry: its carry.
        new_carry: its new carry.
        candidates: positions of the leaves to try.

    Returns:
        Positions in `carry`.
    """
    left_out: list[int] = []
    for candidate in candidates:
        trial = [*left_out, candidate]
        if _all_linear(equations, [carry[index] for index in trial], [new_carry[index] for index in trial]):
            left_out = trial
    return left_out


def _all_linear(equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom]) -> bool:
    equations = needed(equations, new_carry)
    components = Components(equations, carry, new_carry)
    return all(
        len(members) == 1
        and is_linear(
            [equation for equation in equations if components.has(members, equation)],
            carry[members[0]],
            new_carry[members[0]],
            updates=True,
        )
        for members in components.members
    )
