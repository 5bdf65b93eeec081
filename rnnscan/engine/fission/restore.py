"""Values that the backward pass is given, and need not compute again: kept ones, and new carries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from rnnscan.engine.fission.analysis.linear import LINEAR
from rnnscan.engine.fission.program import Atom, Equation, needed, values_of


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
    return equation.primitive.name in _DERIVATIVES


def spared(equations: Sequence[Equation], value: Atom) -> list[Equation]:
    """The equations that the derivative of a step need not run if it is given one of their results.

    Of `h' = tanh(x W + h U), y = h' V` and h' these are all but the last. Of `h' = f * h + g, y = h' V` it is the sum:
    the derivative of the product with f reads f.
    """
    read = values_of(_read_by_derivatives(equations))
    others = [equation for equation in equations if value not in equation.outputs]
    again = set(needed(others, read))
    return [equation for equation in needed(equations, read) if equation not in again]


def _read_by_derivatives(equations: Sequence[Equation]) -> Iterator[Atom]:
    for equation in equations:
        if derives_from_result(equation):
            yield from equation.outputs
        elif equation.primitive.name == "select_n":
            yield equation.inputs[0]
        elif equation.primitive.name not in LINEAR:
            yield from equation.inputs


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
