"""The stacks of a loop that follow from other stacks of it, so that it need not write them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from jax import lax

from rnnscan.engine.analysis.split import Loop
from rnnscan.ir.program import Atom, Equation, Value, inputs_of
from rnnscan.ir.traits import Kind


def parts_of_stacks(loop: Loop) -> dict[Value, tuple[Value, Callable[[Any], Any]]]:
    """Values that a loop would stack, and that are parts of a concatenation that it stacks too.

    Returns:
        Value -> the concatenation, and the function of its stack.
    """
    wanted = set(loop.from_body)
    whole_of: dict[Value, tuple[Value, Callable[[Any], Any]]] = {}
    for equation in reversed(loop.body):
        if equation.name == "concatenate" and equation.outputs[0] in wanted:
            for part, cut in _parts(equation):
                if isinstance(part, Value) and part in wanted:
                    whole_of.setdefault(part, (equation.outputs[0], cut))
    return whole_of


def has_product(loop: Loop) -> bool:
    """Whether a loop has a product."""
    return any(equation.kind is Kind.PRODUCT for equation in loop.body)


def operands_of_products(loop: Loop) -> set[Value]:
    """The values that the products of a loop read."""
    return set(inputs_of(equation for equation in loop.body if equation.kind is Kind.PRODUCT))


def _parts(concatenation: Equation) -> Iterator[tuple[Atom, Callable[[Any], Any]]]:
    first, axis = 0, concatenation.params["dimension"]
    for part in concatenation.inputs:
        last = first + part.shape[axis]
        yield part, partial(lax.slice_in_dim, start_index=first, limit_index=last, axis=axis + 1)
        first = last


def row_by_row(stack: Any) -> Any:
    """A stack that a loop can cut steps off without a copy: XLA would lay out the steps of a row side by side."""
    rows = lax.optimization_barrier(lax.collapse(stack, 0, stack.ndim - 1)) if stack.ndim > 2 else stack
    return rows.reshape(stack.shape)
