"""Clipped shifts over a chunk of steps, as an associative scan.

Two steps `c -> min(max(c + s, low), high)`, call them f and g, make one, because g is monotone:

    g(f(c)) = min(max(c + (s_f + s_g), g(low_f)), g(high_f))

Source: Baccelli et al. 1992, "Synchronization and Linearity", for the max-plus semiring; Blelloch 1990, "Prefix Sums
and Their Applications".
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.analysis.clamped import SHIFTS
from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.engine.loops.exact import guarded
from rnnscan.engine.loops.in_blocks import COMPOSED_FROM, run_in_blocks
from rnnscan.engine.loops.step_by_step import CycleLoop
from rnnscan.ir.program import Atom, Equation, Value, read


LIMITS = {"max": jnp.maximum, "min": jnp.minimum}


def run_clamped(loop: CycleLoop, start: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run a clamped shift `c' = min(max(c + s, low), high)`. See `Executor`.

    Derivatives are those of the loop, where a value equals a limit too.
    """
    if loop.chunk.steps <= COMPOSED_FROM:
        return loop.run_unrolled(start)
    (first,), reverse = start, loop.reverse

    def in_blocks(first: Any, *read_values: Any) -> tuple[list[Any], list[Any]]:
        def at_step(*step_values: Any) -> _Clip:
            return _clip(loop.cycle, dict(zip(loop.cycle.reads, step_values, strict=True)), first)

        steps = jax.vmap(at_step, in_axes=loop.axes, axis_size=loop.chunk.steps)(*read_values)
        after = run_in_blocks(
            lambda earlier, later: later.after(earlier), lambda step, carry: step(carry), steps, first, reverse=reverse
        )
        return [after], [_stays_in_range(steps, first) & ~jnp.any(jnp.isnan(after), 0)]

    (after,) = differentiate_as(loop, guarded(in_blocks, loop))(first, *loop.read_values())
    return loop.before_and_last([after], start)


def _stays_in_range(steps: "_Clip", first: Any) -> Any:
    """Whether no sum of shifts overflows. Infinite shifts and limits are what they are in the loop, or give NaN."""

    def total(leaf: Any) -> Any:
        sizes = jnp.abs(leaf)
        return jnp.sum(jnp.where(jnp.isfinite(sizes), sizes, 0), 0)

    sizes = [total(leaf) for leaf in jax.tree.leaves(steps)]
    return jnp.isfinite(sum(sizes, total(first[None])))


def _clip(cycle: Cycle, values: Mapping[Value, Any], like: Any) -> "_Clip":
    """One step as a function of the leaf."""
    (leaf,), (new_leaf,) = cycle.leaves, cycle.new_leaves
    clips: dict[Atom, _Clip] = {leaf: _Clip(lax.full_like(like, 0), None, None)}
    for equation in cycle.equations:
        operands = [clips[atom] if atom in clips else read(atom, values) for atom in equation.inputs]
        clips[equation.outputs[0]] = _applied(equation, operands, like)
    return clips[new_leaf]


class _Clip(NamedTuple):
    """The function `c -> min(max(c + shift, low), high)`. A limit is None where there is none."""

    shift: Any
    low: Any
    high: Any

    def __call__(self, carry: Any) -> Any:
        carry = carry + self.shift
        carry = carry if self.low is None else jnp.maximum(carry, self.low)
        return carry if self.high is None else jnp.minimum(carry, self.high)

    def after(self, first: "_Clip") -> "_Clip":
        """This function of the results of another one that has the same limits."""
        low, high = (None if limit is None else self(limit) for limit in (first.low, first.high))
        return _Clip(first.shift + self.shift, low, high)


def _applied(equation: Equation, operands: Sequence[Any], like: Any) -> _Clip:
    """The result of an operation on such functions and on values that are free of the leaf."""
    primitive = equation.name
    if primitive == "select_n":
        return _selected(operands[0], operands[1:], like)
    (clip,) = [operand for operand in operands if isinstance(operand, _Clip)]
    free_operands = [operand for operand in operands if operand is not clip]
    if primitive == "clamp":
        return _limited(_limited(clip, jnp.maximum, free_operands[0], like), jnp.minimum, free_operands[1], like)
    if primitive in LIMITS:
        return _limited(clip, LIMITS[primitive], free_operands[0], like)
    if primitive not in SHIFTS:
        return clip

    def shifted(part: Any) -> Any:
        if part is None:
            return None
        return equation.evaluate(*(part if operand is clip else operand for operand in operands))[0]

    return _Clip(*map(shifted, clip))


def _limited(clip: _Clip, operation: Any, limit: Any, like: Any) -> _Clip:
    """The function, with another limit."""
    low, high = (None if bound is None else operation(bound, limit) for bound in clip[1:])
    if operation is jnp.maximum:
        low = _whole(limit, like) if low is None else low
    else:
        high = _whole(limit, like) if high is None else high
    return _Clip(clip.shift, low, high)


def _selected(predicate: Any, cases: Sequence[Any], like: Any) -> _Clip:
    """The function that a predicate selects. A value that is free of the leaf is both of its limits."""

    def selected(nothing: float, parts: Sequence[Any]) -> Any:
        if all(part is None for part in parts):
            return None
        return lax.select_n(predicate, *(lax.full_like(like, nothing) if part is None else part for part in parts))

    wholes = [case if isinstance(case, _Clip) else _whole(case, like) for case in cases]
    clips = [whole if isinstance(whole, _Clip) else _Clip(jnp.zeros_like(whole), whole, whole) for whole in wholes]
    return _Clip(*(selected(*pair) for pair in zip((0.0, -jnp.inf, jnp.inf), zip(*clips, strict=True), strict=True)))


def _whole(value: Any, like: Any) -> Any:
    return jnp.broadcast_to(value, like.shape).astype(like.dtype)
