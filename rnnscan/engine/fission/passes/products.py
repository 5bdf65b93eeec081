"""Products in the form that is quickest: weights stored as they are read, and one product in place of several small."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import jax
from jax import lax

from rnnscan.engine.fission.analysis.components import Components
from rnnscan.engine.fission.analysis.split import needed
from rnnscan.engine.fission.trace import Atom, Equation, Program, Value, concatenated, nominal_size, values_of


# A narrow product that is joined with wide ones is made with them wherever it alone is wanted.
_WHOLE_TO_NARROWEST = 8


def store_transposed(program: Program, invariant: Iterable[Value]) -> Program:
    """Have products `x @ w.T`, as cotangents of `x @ w` are made, read a transposed copy of `w` instead.

    Args:
        program: one step.
        invariant: inputs that are the same at every step.

    Returns:
        The same program, with the transposition in it, as work that is invariant.
    """
    fixed = following(program.equations, invariant)
    copies: dict[Atom, Value] = {}
    equations: list[Equation] = []
    for equation in program.equations:
        if _reads_columns(equation, fixed):
            x, weight = equation.inputs
            if weight not in copies:
                transposition = _transposed(weight)
                copies[weight] = transposition.outputs[0]
                equations.append(transposition)
            (contracted, _), batch = equation.params["dimension_numbers"]
            by_rows = {**equation.params, "dimension_numbers": ((contracted, (0,)), batch)}
            equations.append(replace(equation, params=by_rows, inputs=(x, copies[weight])))
        else:
            equations.append(equation)
    return replace(program, equations=tuple(equations))


def join_products(
    program: Program, invariant: Iterable[Value], carry: Sequence[Value], new_carry: Sequence[Atom]
) -> Program:
    """Have products `x @ w` and `x @ u`, of one x, made as one, `x @ [w u]`, and cut.

    Not where one feeds a loop that the other does not feed: that one could be made at once for many steps.

    Args:
        program: one step.
        invariant: inputs that are the same at every step.
        carry: inputs that are the loop's carry.
        new_carry: outputs that are the carry of the next step to run.

    Returns:
        The same program with fewer products. What is invariant comes first in it.
    """
    equations = needed(program.equations, program.outputs)
    fixed = following(equations, invariant)
    components = Components(equations, carry, new_carry)
    groups: dict[Hashable, list[Equation]] = {}
    for equation in equations:
        if is_rows_by_matrix(equation, fixed):
            x, weight = equation.inputs
            kind = (x, weight.dtype, equation.operation, components.fed(equation.outputs[0]))
            groups.setdefault(kind, []).append(equation)
    alike = filter(lambda group: len(group) > 1, map(_alike_in_width, groups.values()))
    joined = {equation: group for group in alike for equation in group}
    first, varying = _partition(equations, fixed)
    rewritten = [*first]
    for equation in varying:
        if equation not in joined:
            rewritten.append(equation)
        elif equation is joined[equation][0]:
            rewritten.extend(_joined(joined[equation]))
    return replace(program, equations=tuple(rewritten))


def _joined(products: Sequence[Equation]) -> list[Equation]:
    """One product in place of several of one x, and what cuts it."""
    weights = concatenated([product.inputs[1] for product in products], axis=1)
    results = concatenated([product.outputs[0] for product in products], axis=-1)
    product = replace(products[0], inputs=(products[0].inputs[0], weights.outputs[0]), outputs=results.outputs)
    cuts, begin = [], 0
    for piece in (product.outputs[0] for product in products):
        end = begin + piece.shape[-1]
        bounds = {"start_indices": (*(0 for _ in piece.shape[:-1]), begin), "limit_indices": (*piece.shape[:-1], end)}
        cuts.append(Equation(lax.slice_p, {**bounds, "strides": None}, product.outputs, (piece,)))
        begin = end
    return [weights, product, *cuts]


def _alike_in_width(products: Sequence[Equation]) -> list[Equation]:
    """Those that are not much narrower than all of them together."""
    widths = [nominal_size(product.outputs[0].shape[-1:]) for product in products]
    return [
        product
        for product, width in zip(products, widths, strict=True)
        if 0 < sum(widths) <= _WHOLE_TO_NARROWEST * width
    ]


def following(equations: Iterable[Equation], given: Iterable[Value]) -> set[Value]:
    """What is given, and what follows from it alone."""
    following = set(given)
    for equation in equations:
        if set(values_of(equation.inputs)) <= following:
            following.update(equation.outputs)
    return following


def _partition(equations: Iterable[Equation], fixed: set[Value]) -> tuple[list[Equation], list[Equation]]:
    """The equations that make fixed values, and the others, which can run after them."""
    halves: tuple[list[Equation], list[Equation]] = ([], [])
    for equation in equations:
        halves[0 if fixed.issuperset(equation.outputs) else 1].append(equation)
    return halves


def is_rows_by_matrix(equation: Equation, fixed: set[Value]) -> bool:
    """Whether it is `x @ w`, with an x that varies and a matrix that is fixed."""
    if equation.primitive.name != "dot_general":
        return False
    x, weight = equation.inputs
    last_by_first = equation.params["dimension_numbers"] == (((len(x.shape) - 1,), (0,)), ((), ()))
    return isinstance(x, Value) and x not in fixed and weight in fixed and len(weight.shape) == 2 and last_by_first


def _transposed(atom: Atom) -> Equation:
    rows, columns = atom.shape
    aval = jax.ShapeDtypeStruct((columns, rows), atom.dtype)
    return Equation(lax.transpose_p, {"permutation": (1, 0)}, (atom,), (Value(aval),))


def _reads_columns(equation: Equation, fixed: set[Value]) -> bool:
    if equation.primitive.name != "dot_general":
        return False
    left, right = equation.inputs
    (_, contracted), (batch, _) = equation.params["dimension_numbers"]
    varying = isinstance(left, Value) and left not in fixed
    return varying and right in fixed and len(right.shape) == 2 and tuple(contracted) == (1,) and not batch
