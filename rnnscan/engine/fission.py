"""The fission engine: run only what is recurrent step by step.

The forward pass is one scan that also stacks what is kept. The backward pass goes through the sequence in chunks, from
the end: what was not kept is computed again for a chunk at once, a small loop carries the cotangent of the carry, and
the gradients of what all steps share are summed after it, by products that contract over the steps.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine import lax as lax_engine
from rnnscan.engine.backward import Backward, Saved
from rnnscan.engine.segments import run_segments
from rnnscan.engine.step import FlatStep, flatten_step, one_step
from rnnscan.memory import Memory, is_count, kept_names
from rnnscan.naming import Names
from rnnscan.sequence import Length, Step


# Steps of a chunk, where it is not chosen: few, so that its buffers stay in the cache of a CPU. Not tuned yet.
CHUNK = 16


def run(
    step: Step,
    carry: Any,
    xs: Any,
    *,
    length: Length,
    reverse: bool,
    unroll: int | bool,
    memory: Memory | None,
    names: Names,
) -> tuple[Any, Any]:
    """Run a step over time under the rule of memory.

    The arguments are those of the lax engine's `run`, which has the steps that do more than compute.
    """
    run_by_lax = partial(
        lax_engine.run, step, carry, xs, length=length, reverse=reverse, unroll=unroll, memory=memory, names=names
    )
    # Plain autodiff, no step to run, or a symbolic dimension of jax.export, which chunks cannot divide.
    if memory is None or not is_count(length):
        return run_by_lax()
    x = jax.tree.map(one_step, xs)
    flat, constants = flatten_step(step, carry, x, kept=kept_names(memory, names), names=names)
    if flat.has_effects:
        return run_by_lax()

    def run_steps(carry: Any, xs: Any, length: int) -> tuple[Any, Any]:
        chunk = min(length, memory.chunk or CHUNK)
        scan = _differentiable_scan(flat, length, reverse=reverse, unroll=unroll, chunk=chunk)
        final, ys = scan(constants, jax.tree.leaves(carry), jax.tree.leaves(xs))
        return jax.tree.unflatten(jax.tree.structure(carry), final), jax.tree.unflatten(flat.y_structure, ys)

    return run_segments(run_steps, carry, xs, length=length, segments=memory.segments(length), reverse=reverse)


def _differentiable_scan(flat: FlatStep, length: int, *, reverse: bool, unroll: int | bool, chunk: int) -> Any:
    """`(constants, carry, xs) -> (carry, ys)`, all lists of leaves, with the backward pass of this engine."""
    loop = partial(lax.scan, length=length, reverse=reverse, unroll=unroll)

    @jax.custom_vjp
    def scan(constants: list[Any], carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            new_carry, y, _ = flat.forward(constants, carry, x)
            return new_carry, y

        return loop(body, carry, xs)

    def forward(constants: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        given = (constants, carry, xs)
        constants, carry, xs = jax.tree.map(lambda leaf: leaf.value, given, is_leaf=_is_primal)
        differentiated = jax.tree.map(
            lambda leaf: leaf.perturbed and jnp.issubdtype(leaf.value.dtype, jnp.inexact), given, is_leaf=_is_primal
        )
        stacked_carry = [index for index in range(flat.carry_size) if index not in flat.repeats]

        def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
            new_carry, y, kept = flat.forward(constants, carry, x)
            return new_carry, (y, [carry[index] for index in stacked_carry], kept)

        final, (ys, carries, kept) = loop(body, carry, xs)
        repeated = {y: ys[y] for y in flat.repeats.values()}
        saved = Saved(constants, carry, dict(zip(stacked_carry, carries, strict=True)), repeated, xs, kept)
        return (final, ys), (saved, _Static(jax.tree.leaves(differentiated)))

    def backward(residuals: Any, cotangents: Any) -> Any:
        saved, differentiated = residuals
        pull_back = Backward(flat, length=length, reverse=reverse, unroll=unroll, chunk=chunk)
        return pull_back(saved, differentiated.value, *cotangents)

    scan.defvjp(forward, backward, symbolic_zeros=True)
    return scan


@jax.tree_util.register_static
class _Static:
    """What a residual says without being an array."""

    def __init__(self, value: list[bool]) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.value == other.value

    def __hash__(self) -> int:
        return hash(tuple(self.value))


def _is_primal(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.CustomVJPPrimal)
