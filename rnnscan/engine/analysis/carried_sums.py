"""Leaves of the carry that only add up over the steps: each is a sum of terms, which need not wait for one another."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import jax.numpy as jnp

from rnnscan.ir.program import Atom, Equation, Program, Value, inputs_of, values_of


_ADDITIONS = frozenset({"add", "add_any"})


def as_sums(program: Program, kept: Collection[Value] = ()) -> Program:
    """A program whose carry leaves that nothing but their own addition reads are sums over the steps.

    The sums of gradients are such leaves, where a backward pass is a scan like others. In 16 bits each addition rounds,
    so a sum would be another number.

    Args:
        program: the program.
        kept: the leaves that stay.
    """
    reads, maker = Counter([*inputs_of(program.equations), *values_of(program.outputs)]), program.maker
    terms: dict[int, Value] = {}
    additions = set[Equation]()
    for index, (leaf, new_leaf) in enumerate(zip(program.carry, program.new_carry, strict=True)):
        equation = maker.get(new_leaf)
        if equation is not None and leaf not in kept and reads[leaf] == reads[equation.outputs[0]] == 1:
            term = _term(equation, leaf)
            if isinstance(term, Value):
                terms[index] = term
                additions.add(equation)
    others = [index for index in range(len(program.carry)) if index not in terms]
    return replace(
        program,
        equations=tuple(equation for equation in program.equations if equation not in additions),
        carry=tuple(program.carry[index] for index in others),
        new_carry=tuple(program.new_carry[index] for index in others),
        summed=(*program.summed, *terms.values()),
    )


def _term(equation: Equation, leaf: Value) -> Atom | None:
    """What is added to a leaf; None if it is no addition, rounds to 16 bits, or repeats the term along an axis."""
    is_wide = jnp.issubdtype(leaf.dtype, jnp.inexact) and leaf.dtype.itemsize >= 4
    if equation.name not in _ADDITIONS or leaf not in equation.inputs or not is_wide:
        return None
    term = equation.inputs[1 - equation.inputs.index(leaf)]
    return term if term.shape == leaf.shape else None
