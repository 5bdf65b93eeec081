"""Concatenate zero-padded pieces instead of adding them."""

from collections.abc import Sequence

import jax
from jax.export import is_symbolic_dim

from rnnscan.engine.fission.passes.sums import Sums
from rnnscan.engine.fission.program import Atom, Constant, Equation, Program, concatenated


def concatenate_pads(program: Program) -> Program:
    """Replace a sum of zero-padded pieces without gaps by a concatenation.

    Such a sum is the cotangent of `z[..., :n]` and `z[..., n:]`. XLA would select a piece or zero for every element,
    and add.
    """
    sums = Sums(program)

    def rewrite(terms: list[Atom]) -> tuple[Sequence[Equation], Sequence[Atom]]:
        places: dict[int, dict[int, Atom]] = {}
        for term in terms:
            for axis, begin in _padded(sums.maker.get(term)):
                places.setdefault(axis, {})[begin] = term
        for axis, by_begin in places.items():
            padded = [by_begin[begin] for begin in sorted(by_begin)]
            pieces = [sums.maker[term].inputs[0] for term in padded]
            ends = [begin + piece.shape[axis] for begin, piece in zip(sorted(by_begin), pieces, strict=True)]
            if [0, *ends] == [*sorted(by_begin), padded[0].shape[axis]]:
                whole = concatenated(pieces, axis)
                return [whole], [*whole.outputs, *(term for term in terms if term not in padded)]
        return (), ()

    return sums.rewritten(rewrite)


def _padded(equation: Equation | None) -> list[tuple[int, int]]:
    """The axis of an equation that pads one axis with zeros, and the start of its operand; else nothing."""
    if equation is None or equation.primitive.name != "pad":
        return []
    value = equation.inputs[1]
    around = [(low, high) for low, high, between in equation.params["padding_config"] if not between]
    if any(is_symbolic_dim(size) for both in around for size in both):
        return []
    axes = [axis for axis, both in enumerate(around) if any(both)]
    is_plain = len(around) == len(equation.outputs[0].shape) and all(min(both) >= 0 for both in around)
    if len(axes) != 1 or not is_plain or not isinstance(value, Constant) or isinstance(value.value, jax.core.Tracer):
        return []
    return [(axes[0], int(around[axes[0]][0]))] if value.value == 0 else []
