"""Scatter into a sum, and not into zeros to add."""

from collections.abc import Sequence
from dataclasses import replace

from rnnscan.engine.fission.passes.sums import Sums
from rnnscan.engine.fission.program import Atom, Equation, Program, Value, is_zero


def scatter_into_sums(program: Program) -> Program:
    """Compute `a + scatter_add(0, indices, updates)` as `scatter_add(a, indices, updates)`.

    The first is how JAX writes the cotangent of a table whose rows are read by index. A loop would write and add a
    whole table at each step, where the second changes some rows of it in place.
    """
    sums = Sums(program)

    def rewrite(terms: list[Atom]) -> tuple[Sequence[Equation], Sequence[Atom]]:
        made: list[Equation] = []
        scattered = [term for term in terms if _adds_to_zeros(sums, term)]
        others = [term for term in terms if term not in scattered]
        for term in scattered:
            total = others[0] if others else None
            if not isinstance(total, Value) or (total.shape, total.dtype) != (term.shape, term.dtype):
                return (), ()
            scatter = sums.maker[term]
            result = Value(scatter.outputs[0].aval)
            made.append(replace(scatter, inputs=(total, *scatter.inputs[1:]), outputs=(result,)))
            others[0] = result
        return made, others

    return sums.rewritten(rewrite)


def _adds_to_zeros(sums: Sums, term: Atom) -> bool:
    """Whether a term is scattered into zeros, and has no other reader."""
    scatter = sums.maker.get(term)
    if scatter is None or scatter.primitive.name != "scatter-add" or not sums.is_read_once(term):
        return False
    return is_zero(scatter.inputs[0], sums.maker)
