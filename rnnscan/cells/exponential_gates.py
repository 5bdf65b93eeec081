"""Exponential gates with a stabilizer, shared by the cells of xLSTM (Beck et al. 2024, equations 15 to 17)."""

from math import log
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def check_forget_gate(cell: str, forget_gate: Any, forget_bias: Any) -> None:
    """Check the options of an exponential forget gate."""
    if forget_gate not in ("sigmoid", "exp"):
        raise ValueError(f'{cell}: `forget_gate` must be "sigmoid" or "exp"; got {forget_gate!r}.')
    if not isinstance(forget_bias, tuple) or len(forget_bias) != 2:
        raise ValueError(f"{cell}: `forget_bias` must be a tuple of two numbers; got {forget_bias!r}.")


def log_of_forget_gate(forget_gate: str, preactivation: Array) -> Array:
    """The logarithm of a forget gate."""
    return jax.nn.log_sigmoid(preactivation) if forget_gate == "sigmoid" else preactivation


def largest_exponent(like: Array) -> float:
    """An e such that exp(e) ** 2 and exp(-e) ** 2, which occur in gradients of quotients, do not overflow."""
    return 0.45 * log(float(jnp.finfo(like.dtype).max))
