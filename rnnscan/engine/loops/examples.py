"""Loops under `jax.vmap` whose examples stop at different steps.

JAX batches a `lax.while_loop` with a batched condition by selecting the whole carry at each step. Our loops carry
stacks of all steps, so that would take time quadratic in their length (docs/decisions.md, "One condition for all
examples"). So the condition is one for all examples, and a step holds the values of the examples that have stopped.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.extend import core
from jax.interpreters import ad, batching, mlir


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


def hold(runs: Any, new: Any, old: Any) -> Any:
    """`new` in examples that run, and `old` in the others. Without `vmap` a step only runs where `runs` is true.

    Args:
        runs: a boolean.
        new: a pytree.
        old: a pytree like it.
    """
    return jax.tree.map(partial(_hold.bind, runs), new, old)


# A primitive, because JAX cannot batch every derivative of a `custom_vmap` (jax 0.10 to 0.12).
_hold = core.Primitive("rnnscan_hold")


_hold.def_impl(lambda runs, new, old: new)
_hold.def_abstract_eval(lambda runs, new, old: new)
mlir.register_lowering(_hold, lambda context, runs, new, old: [new])


def _differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
    runs, new, old = primals
    _, *moving = tangents
    return hold(runs, new, old), hold(runs, *map(ad.instantiate_zeros, moving))


ad.primitive_jvps[_hold] = _differentiate


def _transpose(cotangent: Any, runs: Any, new: Any, old: Any) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [None, None, None]
    zeros = lax.full_like(cotangent, 0)
    ct_operands = hold(runs, cotangent, zeros), hold(runs, zeros, cotangent)
    pairs = zip(ct_operands, (new, old), strict=True)
    return [None, *(leaf if ad.is_undefined_primal(operand) else None for leaf, operand in pairs)]


ad.primitive_transposes[_hold] = _transpose


def _select(operands: Any, axes: Any) -> tuple[Any, int]:
    return jax.vmap(jnp.where, in_axes=tuple(axes))(*operands), 0


batching.primitive_batchers[_hold] = _select
