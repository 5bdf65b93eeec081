"""The stacks of a loop that follow from other stacks of it, so that it need not write them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from rnnscan.engine.analysis.split import Loop
from rnnscan.ir.program import Atom, Equation, Value, inputs_of
from rnnscan.ir.traits import Kind


def parts_of_stacks(loop: Loop) -> dict[Value, tuple[Value, Callable[[Any], Any]]]:
    """Values that a loop would stack, and that follow from another stack of it by moving elements.

    Returns:
        Value -> the other value, and the function of its stack.
    """
    wanted = set(loop.from_body)
    whole_of: dict[Value, tuple[Value, Callable[[Any], Any]]] = {}
    for equation in reversed(loop.body):
        if equation.name == "concatenate" and equation.outputs[0] in wanted:
            for part, cut in _parts(equation):
                if isinstance(part, Value) and part in wanted:
                    whole_of.setdefault(part, (equation.outputs[0], cut))
    maker = {output: equation for equation in loop.body for output in equation.outputs}
    for value in loop.from_body:
        views: list[Equation] = []
        source: Atom = value
        while isinstance(source, Value) and (source is value or source not in wanted):
            producer = maker.get(source)
            if producer is None or not _moves_elements(producer) or producer.inputs[0].shape == ():
                break
            views.insert(0, producer)
            source = producer.inputs[0]
        if source is not value and source in wanted and isinstance(source, Value):
            whole_of.setdefault(value, (source, partial(_viewed, views)))
    return whole_of


def has_product(loop: Loop) -> bool:
    """Whether a loop has a product."""
    return any(equation.kind is Kind.PRODUCT for equation in loop.body)


def operands_of_products(loop: Loop) -> set[Value]:
    """The values that the products of a loop read."""
    return set(inputs_of(equation for equation in loop.body if equation.kind is Kind.PRODUCT))


def _moves_elements(equation: Equation) -> bool:
    """Whether an equation moves the elements of one operand, and repeats none."""
    return equation.kind is Kind.VIEW and equation.outputs[0].nbytes == equation.reads[0].nbytes


def _parts(concatenation: Equation) -> Iterator[tuple[Atom, Callable[[Any], Any]]]:
    first, axis = 0, concatenation.params["dimension"]
    for part in concatenation.inputs:
        last = first + part.shape[axis]
        yield part, partial(lax.slice_in_dim, start_index=first, limit_index=last, axis=axis + 1)
        first = last


def _viewed(views: Sequence[Equation], stack: Any) -> Any:
    for view in views:
        stack = jax.vmap(view.evaluate)(stack)[0]
    return stack


def row_by_row(stack: Any) -> Any:
    """A stack that a loop can cut steps off without a copy: XLA would lay out the steps of a row side by side."""
    rows = lax.optimization_barrier(lax.collapse(stack, 0, stack.ndim - 1)) if stack.ndim > 2 else stack
    return rows.reshape(stack.shape)
