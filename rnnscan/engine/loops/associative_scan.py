"""Linear recurrences over a chunk of steps, as an associative scan.

Source: Blelloch 1990, "Prefix Sums and Their Applications"; Martin and Cundy 2018, "Parallelizing Linear Recurrent
Neural Nets Over Sequence Length".
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.in_blocks import apply_linear, compose_linear, run_in_blocks
from rnnscan.engine.loops.time_loop import before_each
from rnnscan.ir.program import Atom, Equation, Value


def associative_scan(
    equations: Sequence[Equation], leaf: Value, new_leaf: Atom, chunk: Chunk, start: Any, *, reverse: bool
) -> tuple[Any, Any]:
    """Run a linear recurrence over a chunk of steps at once.

    Two steps `c -> a c + b` and `c -> a' c + b'` make one, `c -> (a' a) c + (a' b + b')`.

    Args:
        equations: the equations between the leaf and the new leaf.
        leaf: the step's carry.
        new_leaf: its new carry, `a * leaf + b`.
        chunk: the values that `a` and `b` follow from.
        start: the carry before the first step to run.
        reverse: whether the steps run from the last to the first.

    Returns:
        The carry before each step, stacked, and the carry after the last one.
    """
    step = _factor_and_term(equations, leaf, new_leaf, chunk, start)
    after = run_in_blocks(compose_linear, apply_linear, step, start, reverse=reverse)
    return before_each(after, start, reverse=reverse), after[0 if reverse else -1]


def _factor_and_term(
    equations: Sequence[Equation], leaf: Value, new_leaf: Atom, chunk: Chunk, start: Any
) -> tuple[Any, Any]:
    """The a and b of `new_leaf = a * leaf + b` at each step, by running the equations on `1 * leaf + 0`."""
    zeros = jnp.broadcast_to(lax.full_like(start, 0), (chunk.steps, *leaf.shape))
    pairs: dict[Atom, tuple[Any, Any]] = {leaf: (zeros + 1, zeros)}
    for equation in equations:
        if not any(atom in pairs for atom in equation.inputs):
            continue
        pairs[equation.outputs[0]] = (
            _evaluate_part(equation, pairs, chunk, part=0),
            _evaluate_part(equation, pairs, chunk, part=1),
        )
    return pairs[new_leaf]


def _evaluate_part(equation: Equation, pairs: dict[Atom, tuple[Any, Any]], chunk: Chunk, part: int) -> Any:
    """The factor (part 0) or the term (part 1) of an equation's result.

    An operand that is free of the leaf scales both, and is added to the term only.
    """
    linear = equation.traits.linear_in([atom in pairs for atom in equation.inputs])
    assert linear is not None
    operands, axes = [], []
    for position, atom in enumerate(equation.inputs):
        if atom in pairs:
            operands.append(pairs[atom][part])
        else:
            free, is_term = chunk.read(atom), linear[position]
            operands.append(jnp.zeros_like(free) if part == 0 and is_term else free)
        axes.append(0 if atom in pairs or chunk.varies(atom) else None)
    return jax.vmap(equation.evaluate, in_axes=axes)(*operands)[0]
