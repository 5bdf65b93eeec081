"""Linear recurrences: `c' = a * c + b`, elementwise, with `a` and `b` free of c."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from rnnscan.ir.components import Components, positions, reachable, union
from rnnscan.ir.program import Atom, Equation, Value
from rnnscan.ir.traits import Kind


def is_linear(equations: Iterable[Equation], leaf: Value, new_leaf: Atom, *, updates: bool = False) -> bool:
    """Whether `new_leaf = a * leaf + b`, elementwise, by the equations between the two.

    Padding and resets keep the form: they select by a predicate that is free of the leaf. With `updates`, so does
    writing values that are free of the leaf into a part of it, where a is 0, or adding them, where it is 1.
    """
    return bool(_linear(((equation, 1) for equation in equations), [leaf], [new_leaf], updates=updates))


def are_linear(equations: Iterable[Equation], leaves: Iterable[Value], new_leaves: Iterable[Atom]) -> bool:
    """Whether new leaves that are elementwise functions of the leaves are linear in them, all together."""
    dependent: set[Atom] = set(leaves)
    for equation in equations:
        operands = [atom in dependent for atom in equation.inputs]
        if any(operands):
            is_inexact = jnp.issubdtype(equation.outputs[0].dtype, jnp.inexact)
            if not is_inexact or equation.kind is Kind.PRODUCT or equation.traits.linear_in(operands) is None:
                return False
            dependent.update(equation.outputs)
    return dependent.issuperset(new_leaves)


def _linear(
    equations: Iterable[tuple[Equation, int]],
    leaves: Sequence[Value],
    new_leaves: Sequence[Atom],
    *,
    updates: bool,
) -> int:
    """The leaves for which `is_linear` holds, each alone. Sets of leaves are the bits of an int.

    Args:
        equations: equations in order, and the leaves for which each lies between the leaf and the new leaf.
        leaves: the leaves.
        new_leaves: the new leaves.
        updates: as `is_linear` has it.
    """
    dependent: dict[Atom, int] = {leaf: 1 << index for index, leaf in enumerate(leaves)}
    of_shape: dict[Any, int] = {}
    for index, leaf in enumerate(leaves):
        of_shape[leaf.shape] = of_shape.get(leaf.shape, 0) | 1 << index
    linear = (1 << len(leaves)) - 1
    for equation, between in equations:
        operands = [dependent.get(atom, 0) & between for atom in equation.inputs]
        reading = union(operands)
        result = equation.outputs[0]
        passing = _linear_in(equation, operands)
        if updates and equation.kind in (Kind.WRITE, Kind.SCATTER) and equation.traits.linear:
            passing |= operands[0] & ~union(operands[1:])
        linear &= ~reading | (passing & of_shape.get(result.shape, 0))
        for output in equation.outputs:
            dependent[output] = dependent.get(output, 0) | reading
    return union(linear & dependent.get(new, 0) & 1 << index for index, new in enumerate(new_leaves))


def _linear_in(equation: Equation, operands: Sequence[int]) -> int:
    """The leaves in which an elementwise operation is linear.

    Args:
        equation: the operation.
        operands: for each operand the leaves that it depends on.
    """
    traits = equation.traits
    if not traits.is_elementwise:
        return 0
    if traits.is_bilinear:
        return operands[0] ^ operands[1]
    linear = traits.linear_positions(len(operands))
    return union(operands) & ~union(leaves for position, leaves in enumerate(operands) if position not in linear)


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
    leaves, new_leaves = [carry[index] for index in candidates], [new_carry[index] for index in candidates]
    components = Components(equations, leaves, new_leaves)
    linear = _linear(components.between(), leaves, new_leaves, updates=True)
    left_out = 0
    for members in components.members:
        left_out |= _without_cycles([leaf for leaf in members if linear >> leaf & 1], components)
    return [candidates[leaf] for leaf in positions(left_out)]


def _without_cycles(leaves: Iterable[int], components: Components) -> int:
    """Of leaves that are tried in order, those that do not feed each other all around, as bits."""
    chosen = 0
    for leaf in leaves:
        fed = reachable(leaf, components.reaches, chosen)
        if not fed & components.reached_from[leaf] & chosen:
            chosen |= 1 << leaf
    return chosen
