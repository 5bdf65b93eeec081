"""Linear recurrences over a chunk of steps, as an associative scan.

Source: Blelloch 1990, "Prefix Sums and Their Applications"; Martin and Cundy 2018, "Parallelizing Linear Recurrent
Neural Nets Over Sequence Length".
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.engine.loops.exact import guarded
from rnnscan.engine.loops.in_blocks import COMPOSED_FROM, apply_linear, compose_linear, run_in_blocks
from rnnscan.engine.loops.step_by_step import CycleLoop, run_unrolled
from rnnscan.engine.loops.time_loop import before_and_after
from rnnscan.ir.program import Atom, Constant, Equation


def run_affine(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run a linear recurrence `c' = a c + b`. See `Executor`.

    Two steps `c -> a c + b` and `c -> a' c + b'` make one, `c -> (a' a) c + (a' b + b')`. Of states that are all finite
    each is that of the loop: within a block they follow from each other, and no composed step has overflowed.
    """
    if chunk.steps <= COMPOSED_FROM:
        return run_unrolled(recurrence, chunk, start, reverse=reverse)
    (first,), loop = start, CycleLoop.of(recurrence.cycle, chunk, reverse=reverse, unroll=unroll)
    read_values = [*map(chunk.read, loop.cycle.reads)]

    def in_blocks(first: Any, *read_values: Any) -> tuple[list[Any], list[Any]]:
        step = _factor_and_term(loop, first, read_values)
        after = run_in_blocks(compose_linear, apply_linear, step, first, reverse=reverse)
        return [after], [jnp.all(jnp.isfinite(after), 0)]

    if jnp.issubdtype(first.dtype, jnp.integer):
        (after,), _ = in_blocks(first, *read_values)  # Exact modulo 2^n.
    else:
        (after,) = differentiate_as(loop, guarded(in_blocks, loop))(first, *read_values)
    return before_and_after([after], start, reverse=reverse)


def run_delay(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run a delay, `c' = b`: the new leaves do not depend on the leaves. See `Executor`."""
    after = [chunk.stacked(atom) for atom in recurrence.cycle.new_leaves]
    return before_and_after(after, start, reverse=reverse)


def _factor_and_term(loop: CycleLoop, start: Any, read_values: Sequence[Any]) -> tuple[Any, Any]:
    """The a and b of `new_leaf = a * leaf + b` at each step, by running the equations on `1 * leaf + 0`."""
    (leaf,), (new_leaf,) = loop.cycle.leaves, loop.cycle.new_leaves
    zeros = jnp.broadcast_to(lax.full_like(start, 0), (loop.steps, *leaf.shape))
    pairs: dict[Atom, tuple[Any, Any]] = {leaf: (zeros + 1, zeros)}
    free = dict(zip(loop.cycle.reads, zip(read_values, loop.axes, strict=True), strict=True))
    for equation in loop.cycle.equations:
        pairs[equation.outputs[0]] = (
            _evaluate_part(equation, pairs, free, part=0),
            _evaluate_part(equation, pairs, free, part=1),
        )
    return pairs[new_leaf]


def _evaluate_part(
    equation: Equation, pairs: dict[Atom, tuple[Any, Any]], free: Mapping[Any, tuple[Any, int | None]], part: int
) -> Any:
    """The factor (part 0) or the term (part 1) of an equation's result.

    An operand that is free of the leaf scales both, and is added to the term only.
    """
    linear = equation.traits.linear_in([atom in pairs for atom in equation.inputs])
    assert linear is not None
    operands, axes = list[Any](), list[int | None]()
    for atom, is_term in zip(equation.inputs, linear, strict=True):
        if atom in pairs:
            operands.append(pairs[atom][part])
            axes.append(0)
        else:
            operand, axis = (atom.value, None) if isinstance(atom, Constant) else free[atom]
            operands.append(jnp.zeros_like(operand) if part == 0 and is_term else operand)
            axes.append(axis)
    return jax.vmap(equation.evaluate, in_axes=axes)(*operands)[0]
