"""Merge a sum of products into one product."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.passes.join_products import is_rows_by_matrix
from rnnscan.engine.passes.sums import Sums
from rnnscan.ir.components import Components
from rnnscan.ir.program import Atom, Equation, Program, Value, concatenated


def merge_products(program: Program, heuristics: Heuristics) -> Program:
    """Compute `x @ w + h @ u` as one product, `[x h] @ [w; u]`, where x and h depend on the same loops.

    Products that depend on no loop are batched over a chunk. On a CPU their results would not fit into a cache together
    with their sum. They are merged where `Heuristics.merges_at_once` says so, unless x is made of much larger values,
    which would be batched too.
    """
    sums = Sums(program)
    components = Components(sums.equations, program.carry, program.new_carry)
    largest = _largest_feeding(sums.equations)

    def kind(term: Atom) -> Hashable:
        """A key that is equal for terms to merge; None for other terms."""
        product = sums.maker.get(term)
        if product is None or not sums.is_read_once(term) or not is_rows_by_matrix(product, program.fixed):
            return None
        x, weight = product.inputs
        if not isinstance(x, Value) or len(x.shape) != 2:
            return None
        loops = components.feeding(x)
        if not loops and (not heuristics.merges_at_once or heuristics.too_large_to_feed(x, largest.get(x, []))):
            return None
        return loops, x.dtype, weight.dtype, product.operation

    def merged(products: Sequence[Equation]) -> list[Equation]:
        """Equations whose last one makes the sum of products."""
        xs, weights = zip(*(product.inputs for product in products), strict=True)
        origin = products[0].origin
        x, weight = concatenated(xs, 1, origin), concatenated(weights, 0, origin)
        inputs, outputs = (x.outputs[0], weight.outputs[0]), (Value(products[0].outputs[0].aval),)
        return [x, weight, replace(products[0], inputs=inputs, outputs=outputs)]

    def rewrite(terms: list[Atom]) -> tuple[Sequence[Equation], Sequence[Atom]]:
        equations: list[Equation] = []
        left = [*terms]  # A term may be there twice.
        groups: dict[Hashable, list[Atom]] = {}
        for term in terms:
            groups.setdefault(kind(term), []).append(term)
        for group in (group for key, group in groups.items() if key is not None and len(group) > 1):
            equations += merged([sums.maker[term] for term in group])
            left = [*equations[-1].outputs, *(term for term in left if term not in group)]
        return equations, left

    return sums.rewritten(rewrite)


def _largest_feeding(equations: Iterable[Equation]) -> dict[Atom, list[Equation]]:
    """For each value, the equation that makes the largest of all that it depends on, itself among them."""
    largest_of: dict[Atom, list[Equation]] = {}
    for equation in equations:
        before = [producer for atom in equation.inputs for producer in largest_of.get(atom, ())]
        largest = max([equation, *before], key=_largest_result)
        largest_of.update((output, [largest]) for output in equation.outputs)
    return largest_of


def _largest_result(equation: Equation) -> int:
    return max((output.nbytes for output in equation.outputs), default=0)
