"""Join products of the same rows into one wide product."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

from jax import lax

from rnnscan.ir.components import Components
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import needed, partition
from rnnscan.ir.program import Equation, Program, Value, concatenated, nominal_size
from rnnscan.ir.traits import Kind


# A product is not joined if the joined one is wider by more than this: where it alone is wanted, all are computed.
_WHOLE_TO_NARROWEST = 8


def join_products(program: Program) -> Program:
    """Compute `x @ w` and `x @ u` as one product, `x @ [w u]`, and slice it.

    Products that feed different loops stay apart, because one of them may be batched over time without the other. So
    do products whose results are broadcast, such as the k and v of `k v^T`: on a CPU, XLA does not vectorise a loop
    that broadcasts a slice of a stack.

    Invariant equations come first in the result.
    """
    equations = needed(program.equations, program.outputs)
    broadcast = _broadcast(equations)
    components = Components(equations, program.carry, program.new_carry)
    groups: dict[Hashable, list[Equation]] = {}
    for equation in equations:
        if is_rows_by_matrix(equation, program.fixed) and equation.outputs[0] not in broadcast:
            x, weight = equation.inputs
            kind = (x, weight.dtype, equation.operation, components.fed(equation.outputs[0]))
            groups.setdefault(kind, []).append(equation)
    alike = filter(lambda group: len(group) > 1, map(_alike_in_width, groups.values()))
    joined = {equation: group for group in alike for equation in group}
    first, varying = partition(equations, program.fixed)
    rewritten = [*first]
    for equation in varying:
        if equation not in joined:
            rewritten.append(equation)
        elif equation is joined[equation][0]:
            rewritten.extend(_joined(joined[equation]))
    return replace(program, equations=tuple(rewritten))


def _broadcast(equations: Sequence[Equation]) -> set[Value]:
    """The values of which something greater is made, element by element."""
    broadcast: set[Value] = set()
    for equation in reversed(equations):
        if equation.kind in (Kind.PRODUCT, Kind.JOIN):
            continue  # Their result is greater than an operand without repeating its elements.
        size = max((nominal_size(output.shape) for output in equation.outputs), default=0)
        for value in equation.reads:
            value_size = nominal_size(value.shape)
            if value_size < size or (value_size == size and not broadcast.isdisjoint(equation.outputs)):
                broadcast.add(value)
    return broadcast


def _joined(products: Sequence[Equation]) -> list[Equation]:
    """The joined product of several with one x, and its slices."""
    origin = products[0].origin
    weights = concatenated([product.inputs[1] for product in products], 1, origin)
    results = concatenated([product.outputs[0] for product in products], -1)
    product = replace(products[0], inputs=(products[0].inputs[0], weights.outputs[0]), outputs=results.outputs)
    cuts, begin = [], 0
    for piece in (product.outputs[0] for product in products):
        end = begin + piece.shape[-1]
        bounds = {"start_indices": (*(0 for _ in piece.shape[:-1]), begin), "limit_indices": (*piece.shape[:-1], end)}
        cuts.append(Equation(lax.slice_p, {**bounds, "strides": None}, product.outputs, (piece,), origin=origin))
        begin = end
    return [weights, product, *cuts]


def _alike_in_width(products: Sequence[Equation]) -> list[Equation]:
    """The products that are not much narrower than all of them together."""
    widths = [nominal_size(product.outputs[0].shape[-1:]) for product in products]
    return [
        product
        for product, width in zip(products, widths, strict=True)
        if 0 < sum(widths) <= _WHOLE_TO_NARROWEST * width
    ]


def is_rows_by_matrix(equation: Equation, fixed: Collection[Value], summed: int = 0) -> bool:
    """Whether it is `x @ w`, with a varying x and a fixed matrix w; or `x @ w.T`, if axis 1 of it is `summed`."""
    contraction = contraction_of(equation)
    if contraction is None:
        return False
    x, weight = equation.inputs
    of_rows = contraction.contracted == ((len(x.shape) - 1,), (summed,)) and not contraction.batch[0]
    return isinstance(x, Value) and x not in fixed and weight in fixed and len(weight.shape) == 2 and of_rows
