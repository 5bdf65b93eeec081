"""Exponential gates, as the cells of xLSTM have them, kept in range by a stabilizer: what these cells share."""

from math import log
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def check_forget_gate(cell: str, forget_gate: Any, forget_bias: Any) -> None:
    """Refuse a forget gate of another form, and a bias of it that is not two numbers."""
    if forget_gate not in ("sigmoid", "exp"):
        raise ValueError(f'{cell}: `forget_gate` must be "sigmoid" or "exp"; got {forget_gate!r}.')
    if not isinstance(forget_bias, tuple) or len(forget_bias) != 2:
        raise ValueError(f"{cell}: `forget_bias` must be a tuple of two numbers; got {forget_bias!r}.")


def log_of_forget_gate(forget_gate: str, preactivation: Array) -> Array:
    """The logarithm of a forget gate."""
    return jax.nn.log_sigmoid(preactivation) if forget_gate == "sigmoid" else preactivation


def largest_exponent(like: Array) -> float:
    """An e such that the squares of exp(e) and exp(-e), which gradients of quotients take, are still numbers."""
    return 0.45 * log(float(jnp.finfo(like.dtype).max))
