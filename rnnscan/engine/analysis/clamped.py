"""Clipped shifts: `c' = min(max(c + s, low), high)`, elementwise, with the shift and the limits free of c.

The stabilizer of an mLSTM is one, `m' = max(log f + m, log i)`. So are running maxima, counters with limits, and sums
that begin again at 0 where they would be negative. Without an upper limit this is linear in the max-plus semiring.
"""

from collections.abc import Iterable

import jax.numpy as jnp

from rnnscan.ir.program import Atom, Equation, Value


SHIFTS = frozenset({"add", "add_any", "sub"})
_LIMITS = frozenset({"max", "min"})
_SAME = frozenset({"copy", "stop_gradient"})


def is_clamped_shift(equations: Iterable[Equation], leaf: Value, new_leaf: Atom) -> bool:
    """Whether `new_leaf = min(max(leaf + s, low), high)`, elementwise, by the equations between the two.

    Padding and resets keep the form: they select by a predicate that is free of the leaf.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return False
    dependent: set[Atom] = {leaf}
    for equation in equations:
        operands = [atom in dependent for atom in equation.inputs]
        if not any(operands):
            continue
        result = equation.outputs[0]
        if not _keeps_form(equation, operands) or result.shape != leaf.shape or result.dtype != leaf.dtype:
            return False
        dependent.update(equation.outputs)
    return new_leaf in dependent


def _keeps_form(equation: Equation, operands: list[bool]) -> bool:
    """Whether an operation on values of the form, where they are marked, has the form."""
    primitive = equation.name
    has_one_operand = operands.count(True) == 1
    return (
        primitive in _SAME
        or (primitive in SHIFTS - {"sub"} and has_one_operand)
        or (primitive == "sub" and operands == [True, False])
        or (primitive in _LIMITS and has_one_operand)
        or (primitive == "clamp" and operands == [False, True, False])
        or (primitive == "select_n" and not operands[0])
    )
