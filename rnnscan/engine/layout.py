"""Products in the form that is quickest: weights stored as they are read, and one product for a sum of two."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import jax
from jax import lax

from rnnscan.engine.heuristics import too_large_to_feed
from rnnscan.engine.split import needed
from rnnscan.engine.trace import Atom, Equation, Program, Value, values_of


def store_transposed(program: Program, invariant: Iterable[Value]) -> Program:
    """Have products `x @ w.T`, as cotangents of `x @ w` are made, read a transposed copy of `w` instead.

    Args:
        program: one step.
        invariant: inputs that are the same at every step.

    Returns:
        The same program, with the transposition in it, as work that is invariant.
    """
    fixed = set(invariant)
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
        if set(values_of(equation.inputs)) <= fixed:
            fixed.update(equation.outputs)
    return replace(program, equations=tuple(equations))


def merge_products(program: Program, invariant: Iterable[Value], known: Iterable[Value]) -> Program:
    """Have sums of two products, `x @ w + h @ u`, made as one: `[x h] @ [w; u]`.

    Only where `x` and `h` are known for every step, and not made of much larger values, so that the one product is made
    for a chunk of steps: what the two products of a chunk write, and their sum reads, does not fit into a cache.

    Args:
        program: one step.
        invariant: inputs that are the same at every step.
        known: inputs that are known for every step.

    Returns:
        The same program with fewer products.
    """
    fixed, given = set(invariant), {*invariant, *known}
    maker: dict[Atom, Equation] = {}
    uses = Counter(value for equation in program.equations for value in values_of(equation.inputs))
    uses.update(values_of(program.outputs))
    equations: list[Equation] = []
    for equation in program.equations:
        products = [maker.get(atom) for atom in equation.inputs]
        both = [product for product in products if product is not None]
        if equation.primitive.name in ("add", "add_any") and _can_merge(both, given, fixed, uses, equations):
            first, second = both
            xs, weights = zip(first.inputs, second.inputs, strict=True)
            both_x, both_weights = _concatenated(xs, axis=1), _concatenated(weights, axis=0)
            merged = replace(first, inputs=(both_x.outputs[0], both_weights.outputs[0]), outputs=equation.outputs)
            added = [both_x, both_weights, merged]
        else:
            added = [equation]
        for new in added:
            equations.append(new)
            for known_values in (fixed, given):
                if set(values_of(new.inputs)) <= known_values:
                    known_values.update(new.outputs)
        maker.update(dict.fromkeys(equation.outputs, equation))
    return replace(program, equations=tuple(equations))


def _can_merge(
    products: Sequence[Equation],
    given: set[Value],
    fixed: set[Value],
    uses: Counter[Value],
    earlier: Sequence[Equation],
) -> bool:
    if len(products) != 2 or products[0] is products[1]:
        return False
    for product in products:
        if product.primitive.name != "dot_general" or uses[product.outputs[0]] != 1:
            return False
        x, weight = product.inputs
        matrices = len(x.shape) == len(weight.shape) == 2
        rows_by_columns = product.params["dimension_numbers"] == (((1,), (0,)), ((), ()))
        if not (matrices and rows_by_columns and weight in fixed):
            return False
        if not isinstance(x, Value) or x not in given or x in fixed:
            return False
        if too_large_to_feed(x, needed(earlier, [x])):
            return False
    first, second = products
    return first.params == second.params and all(
        a.dtype == b.dtype for a, b in zip(first.inputs, second.inputs, strict=True)
    )


def _transposed(atom: Atom) -> Equation:
    rows, columns = atom.shape
    aval = jax.ShapeDtypeStruct((columns, rows), atom.dtype)
    return Equation(lax.transpose_p, {"permutation": (1, 0)}, (atom,), (Value(aval),))


def _concatenated(atoms: Sequence[Atom], axis: int) -> Equation:
    types = [jax.ShapeDtypeStruct(atom.shape, atom.dtype) for atom in atoms]
    aval = jax.eval_shape(lambda *parts: lax.concatenate(parts, axis), *types)
    return Equation(lax.concatenate_p, {"dimension": axis}, tuple(atoms), (Value(aval),))


def _reads_columns(equation: Equation, fixed: set[Value]) -> bool:
    if equation.primitive.name != "dot_general":
        return False
    left, right = equation.inputs
    (_, contracted), (batch, _) = equation.params["dimension_numbers"]
    varying = isinstance(left, Value) and left not in fixed
    return varying and right in fixed and len(right.shape) == 2 and tuple(contracted) == (1,) and not batch
