"""JAX's functions with rules for derivatives, such as `jax.nn.relu`. Each trace makes other objects for a rule.

These rules close over nothing of the user's. It does not suffice that a function is in a file of JAX: `jax.custom_jvp`
may take one of JAX's with a rule of the user's, and `jax.custom_gradient` and `jax.lax.custom_root` take the user's
functions.
"""

from collections.abc import Mapping
from functools import cache
from inspect import unwrap
from os import sep
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special

from rnnscan.ir.jaxprs import all_equations, inner_jaxprs


_JAX = f"{Path(jax.__file__).parent}{sep}"


def has_rule_of_jax(params: Mapping[str, Any]) -> bool:
    """Whether both a function and its rule are JAX's, given the parameters of its equation."""
    places = [_place(value) for value in params.values() if hasattr(value, "debug_info")]
    if not all(place.startswith(_JAX) for place in places) or _functions_of_jax().isdisjoint(places):
        return False
    # `jax.custom_jvp(jax.nn.relu)` stands where `jax.nn.relu` does.
    within = (equation for body in inner_jaxprs(params) for equation in all_equations(body))
    return not any(equation.primitive.name.startswith("custom_") for equation in within)


def _place(traced: Any) -> str:
    """The file and the line of a function that was traced. JAX writes `name at file:line`."""
    return str(traced.debug_info.func_src_info).rpartition(" at ")[2]


@cache
def _functions_of_jax() -> frozenset[str]:
    """The file and the line of each function with a rule in the modules of JAX's functions of arrays."""
    one_of_each = (
        jax.nn.relu,
        jnp.sinc,
        jnp.where,
        jnp.linalg.det,
        special.xlogy,
        lax.conv_general_dilated_patches,
    )
    named = [value for function in one_of_each for value in unwrap(function).__globals__.values()]
    codes = [unwrap(value).__code__ for value in named if isinstance(value, jax.custom_jvp | jax.custom_vjp)]
    return frozenset(f"{code.co_filename}:{code.co_firstlineno}" for code in codes)
