"""Values that the backward pass is given, and need not compute again: kept ones, and new carries."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

from rnnscan.ir.program import Equation


# The functions whose derivatives follow from their results, in the forms that JAX has: 1 - result^2 would lose the
# derivative of a saturated tanh to rounding.
_DERIVATIVES: Mapping[str, Callable[[Any], Any]] = {
    "exp": lambda result: result,
    "logistic": lambda result: result * (1 - result),
    "sqrt": lambda result: 0.5 / result,
    "tanh": lambda result: (1 - result) * (1 + result),
}


def derives_from_result(equation: Equation) -> bool:
    """Whether the derivative of an equation follows from its result."""
    return equation.name in _DERIVATIVES


@jax.custom_jvp
def restored(computed: Any, kept: Any) -> Any:
    """The kept value, whose derivative is that of the computed one."""
    return kept


@restored.defjvp
def _restored_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[1], tangents[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def restored_function(name: str, operand: Any, kept: Any) -> Any:
    """The kept result of a function that `derives_from_result`. The operand is needed for its tangent only."""
    return kept


@restored_function.defjvp
def _restored_function_jvp(name: str, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[1], tangents[0] * _DERIVATIVES[name](primals[1])
