"""Whether a cell makes random choices, such as dropout: whether its step depends on its key."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import in_words
from rnnscan.ir.dataflow import depending
from rnnscan.ir.program import values_of
from rnnscan.ir.trace import trace
from rnnscan.naming import unnamed
from rnnscan.randomness import warn_if_differentiated, warns_without_key, with_key


def makes_random_choices(cell: Any, params: Any, carry: Any, x: Any) -> bool:
    """Whether the results of a step depend on the key that `with_key` binds. Nothing is computed.

    A cell may have `with_key` only to hand the key to cells within it, as stacks do.

    Args:
        cell: a cell without a key.
        params: its parameters.
        carry: its carry.
        x: one step's input. Of all three, only the types matter.
    """
    if not hasattr(cell, "with_key"):
        return False
    leaves, structure = jax.tree.flatten((params, carry, x))

    def step(key: Any, *leaves: Any) -> Sequence[Any]:
        params, carry, x = jax.tree.unflatten(structure, leaves)
        return jax.tree.leaves(with_key(cell, key, params, x)(params, carry, (x, jnp.zeros((), int))))

    with unnamed():
        program = trace(step, jax.random.key(0), *leaves)
    return not depending(program.equations, program.known[:1]).isdisjoint(values_of(program.outputs))


def warned_if_random(
    results: Any, function: str, cell: Any, params: Any, carry: Any, x: Any, **how_to_pass_one: str
) -> Any:
    """The results of a call without a key, which warn where they are differentiated if the cell makes random choices.

    Args:
        results: a pytree of arrays.
        function: the name of the function that was called.
        cell: the cell.
        params: its parameters.
        carry: its carry.
        x: one step's input. Of all three, only the types matter.
        how_to_pass_one: `lacking` and `remedy` of `warn_if_differentiated`.
    """
    if not warns_without_key() or not makes_random_choices(cell, params, carry, x):
        return results
    return warn_if_differentiated(results, function, in_words(cell), **how_to_pass_one)
