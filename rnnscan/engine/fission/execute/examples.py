"""Loops under `jax.vmap` whose examples stop at different steps.

JAX batches a `lax.while_loop` with a batched condition by selecting the whole carry at each step. Our loops carry
stacks of all steps, so that would take time quadratic in their length (docs/decisions.md, "One condition for all
examples"). So the condition is one for all examples, and a step holds the values of the examples that have stopped.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


@custom_vmap
def any_example(flag: Any) -> Any:
    """Whether a flag is true for any example of all enclosing `vmap`s."""
    return flag


@any_example.def_vmap
def _any_of_batch(_size: int, batched: list[bool], flag: Any) -> tuple[Any, bool]:
    return any_example(jnp.any(flag, axis=0)) if batched[0] else flag, False


@custom_vmap
def greatest(count: Any) -> Any:
    """The greatest count of all examples."""
    return count


@greatest.def_vmap
def _greatest_of_batch(_size: int, batched: list[bool], count: Any) -> tuple[Any, bool]:
    return greatest(jnp.max(count, axis=0)) if batched[0] else count, False


@custom_vmap
def hold(runs: Any, new: Any, old: Any) -> Any:
    """`new` in examples that run, and `old` in the others. Without `vmap` a step only runs where `runs` is true."""
    return new


@hold.def_vmap
def _hold_in_batch(size: int, batched: Any, runs: Any, new: Any, old: Any) -> tuple[Any, Any]:
    runs_is_batched, *are_batched = batched

    def select(new: Any, old: Any, *batched: bool) -> Any:
        axes = [0 if one else None for one in (runs_is_batched, *batched)]
        return jax.vmap(jnp.where, in_axes=axes, axis_size=size)(runs, new, old)

    return jax.tree.map(select, new, old, *are_batched), jax.tree.map(lambda _: True, new)
