"""Linear recurrences over a chunk of steps, as an associative scan.

Source: Blelloch 1990, "Prefix Sums and Their Applications"; Martin and Cundy 2018, "Parallelizing Linear Recurrent
Neural Nets Over Sequence Length".
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import in_range_of_float32
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.engine.loops.exact import guarded
from rnnscan.engine.loops.in_blocks import COMPOSED_FROM, apply_linear, compose_linear, run_in_blocks
from rnnscan.engine.loops.step_by_step import CycleLoop


def run_affine(loop: CycleLoop, start: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run a linear recurrence `c' = a c + b`. See `Executor`.

    Two steps `c -> a c + b` and `c -> a' c + b'` make one, `c -> (a' a) c + (a' b + b')`. Of states that are all finite
    each is that of the loop: within a block they follow from each other, and no composed step has overflowed. States of
    float16 are computed in float32, because products of factors underflow where no state does. In float32 that takes a
    state above 1, and factors whose product is below 1e-38.
    """
    if loop.chunk.steps <= COMPOSED_FROM:
        return loop.run_unrolled(start)
    (first,), read_values = start, loop.read_values()

    def in_blocks(first: Any, *read_values: Any) -> tuple[list[Any], list[Any]]:
        dtype = in_range_of_float32(first.dtype)
        step, start = jax.tree.map(lambda leaf: leaf.astype(dtype), (_factor_and_term(loop, first, read_values), first))
        after = run_in_blocks(compose_linear, apply_linear, step, start, reverse=loop.reverse).astype(first.dtype)
        return [after], [jnp.all(jnp.isfinite(after), 0)]

    if jnp.issubdtype(first.dtype, jnp.integer):
        (after,), _ = in_blocks(first, *read_values)  # Exact modulo 2^n.
    else:
        (after,) = differentiate_as(loop, guarded(in_blocks, loop))(first, *read_values)
    return loop.before_and_last([after], start)


def run_delay(loop: CycleLoop, start: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run a delay, `c' = b`: the new leaves do not depend on the leaves. See `Executor`."""
    return loop.before_and_last([*map(loop.chunk.stacked, loop.cycle.new_leaves)], start)


def _factor_and_term(loop: CycleLoop, start: Any, read_values: Sequence[Any]) -> tuple[Any, Any]:
    """The a and b of `new_leaf = a * leaf + b` at each step: its derivative, and its value at zero."""
    zero, one = (lax.full_like(start, number) for number in (0, 1))

    def at_step(*step_values: Any) -> tuple[Any, Any]:
        new_leaf = lambda leaf: loop.cycle.step([leaf], step_values, iterates=True)[0]  # noqa: E731
        if jnp.issubdtype(start.dtype, jnp.integer):
            term = new_leaf(zero)
            return new_leaf(one) - term, term  # Exact modulo 2^n.
        term, factor = jax.jvp(new_leaf, [zero], [one])
        return factor, term

    return jax.vmap(at_step, in_axes=loop.axes, axis_size=loop.chunk.steps)(*read_values)
