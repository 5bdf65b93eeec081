"""Clipped shifts: `c' = min(max(c + s, low), high)`, elementwise, with the shift and the limits free of c.

The stabilizer of an mLSTM is one, `m' = max(log f + m, log i)`. So are running maxima, counters with limits, and sums
that begin again at 0 where they would be negative. Without an upper limit this is linear in the max-plus semiring.
"""

import jax.numpy as jnp

from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.ir.dataflow import depending
from rnnscan.ir.program import Equation


SHIFTS = frozenset({"add", "add_any", "sub"})
_LIMITS = frozenset({"max", "min"})
_SAME = frozenset({"copy", "stop_gradient"})


def is_clamped_shift(cycle: Cycle) -> bool:
    """Whether a cycle is one leaf with `new_leaf = min(max(leaf + s, low), high)`, elementwise.

    Padding and resets keep the form: they select by a predicate that is free of the leaf.
    """
    leaf = cycle.leaves[0]
    if len(cycle.leaves) > 1 or not jnp.issubdtype(leaf.dtype, jnp.floating):
        return False
    dependent = depending(cycle.equations, [leaf])
    between = [equation for equation in cycle.equations if not dependent.isdisjoint(equation.reads)]
    same_type = all(value.shape == leaf.shape and value.dtype == leaf.dtype for value in dependent)
    keep_form = (_keeps_form(equation, [atom in dependent for atom in equation.inputs]) for equation in between)
    return cycle.new_leaves[0] in dependent and same_type and all(keep_form)


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
