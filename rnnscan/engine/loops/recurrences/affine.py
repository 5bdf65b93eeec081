"""Linear recurrences over a chunk of steps, as an associative scan.

Source: Blelloch 1990, "Prefix Sums and Their Applications"; Martin and Cundy 2018, "Parallelizing Linear Recurrent
Neural Nets Over Sequence Length".
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.in_blocks import apply_linear, compose_linear, run_in_blocks
from rnnscan.engine.loops.time_loop import before_and_after
from rnnscan.ir.program import Atom, Equation


def run_affine(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run a linear recurrence `c' = a c + b`. See `Executor`.

    Two steps `c -> a c + b` and `c -> a' c + b'` make one, `c -> (a' a) c + (a' b + b')`.
    """
    cycle, (first,) = recurrence.cycle, start
    step = _factor_and_term(cycle, chunk, first)
    after = run_in_blocks(compose_linear, apply_linear, step, first, reverse=reverse)
    return before_and_after([after], start, reverse=reverse)


def _factor_and_term(cycle: Cycle, chunk: Chunk, start: Any) -> tuple[Any, Any]:
    """The a and b of `new_leaf = a * leaf + b` at each step, by running the equations on `1 * leaf + 0`."""
    (leaf,), (new_leaf,) = cycle.leaves, cycle.new_leaves
    zeros = jnp.broadcast_to(lax.full_like(start, 0), (chunk.steps, *leaf.shape))
    pairs: dict[Atom, tuple[Any, Any]] = {leaf: (zeros + 1, zeros)}
    for equation in cycle.equations:
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
