"""Which of JAX's effects are side effects of a step.

An effect makes it matter how often, and in which order, operations run. JAX gives one to collectives over a named axis
too, so that a jaxpr tells in which axes it runs. They are no side effects: all devices run one program.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def ordered(effects: Iterable[Any]) -> frozenset[Any]:
    """The effects for which operations must stay, in their order: all but those of collectives."""
    return frozenset(effect for effect in effects if not isinstance(effect, _collective()))


def once(effects: Iterable[Any]) -> frozenset[Any]:
    """The effects that must happen once for each step: neither those of collectives nor those of `jax.debug`."""
    # Effects have no public type; those of jax.debug have it in their names.
    return frozenset(effect for effect in ordered(effects) if "Debug" not in str(effect))


def are_of_local_refs(effects: Iterable[Any]) -> bool:
    """Whether those effects that must happen once are all of refs that the step makes, `jax.new_ref`."""
    return all(isinstance(effect, _local_ref()) for effect in once(effects))


# JAX has no public names of the types of its effects.


@cache
def _local_ref() -> type:
    """The type of the effect of making a ref."""
    (effect,) = jax.make_jaxpr(lambda: jax.new_ref(jnp.zeros(()))[...])().effects
    return type(effect)


@cache
def _collective() -> type:
    """The type of a collective's effect."""
    (effect,) = jax.make_jaxpr(lambda: lax.axis_index("rnnscan"), axis_env=[("rnnscan", 1)])().effects
    return type(effect)
