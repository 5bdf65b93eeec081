"""Concatenate zero-padded pieces instead of adding them."""

from collections.abc import Sequence
from typing import NamedTuple

from jax.export import is_symbolic_dim

from rnnscan.engine.passes.sums import Sums
from rnnscan.ir.program import Atom, Equation, Program, concatenated, concrete


def concatenate_pads(program: Program) -> Program:
    """Replace a sum of zero-padded pieces without gaps by a concatenation.

    Such a sum is the cotangent of `z[..., :n]` and `z[..., n:]`. XLA would select a piece or zero for every element,
    and add. The cotangent of a stencil of rolled arrays is several such sums in one.
    """
    sums = Sums(program)

    def rewrite(terms: list[Atom]) -> tuple[Sequence[Equation], Sequence[Atom]]:
        places: dict[int, list[_Piece]] = {}
        for term in terms:
            for axis, begin in _padded(sums.maker.get(term)):
                piece = sums.maker[term].inputs[0]
                places.setdefault(axis, []).append(_Piece(begin, begin + piece.shape[axis], piece, term))
        concatenations: list[Equation] = []
        for axis, pieces in places.items():
            size = pieces[0].term.shape[axis]
            while row := _row(pieces, 0, size):
                concatenations.append(concatenated([one.value for one in row], axis, sums.maker[row[0].term].origin))
                for one in row:  # A term may be there twice.
                    pieces.remove(one)
                    terms.remove(one.term)
                terms = [*concatenations[-1].outputs, *terms]
        return concatenations, terms

    return sums.rewritten(rewrite)


class _Piece(NamedTuple):
    """A term that is zero but from `begin` to `end` along an axis, where it is `value`."""

    begin: int
    end: int
    value: Atom
    term: Atom


def _row(pieces: Sequence[_Piece], begin: int, end: int) -> list[_Piece]:
    """Pieces that lie side by side from `begin` to `end`; empty if there are none."""
    to_end: dict[int, list[_Piece]] = {end: []}
    for piece in sorted(pieces, key=lambda piece: -piece.begin):
        if piece.begin < piece.end and piece.end in to_end:
            to_end.setdefault(piece.begin, [piece, *to_end[piece.end]])
    return to_end.get(begin, [])


def _padded(equation: Equation | None) -> list[tuple[int, int]]:
    """The axis of an equation that pads one axis with zeros, and the start of its operand; else nothing."""
    if equation is None or equation.name != "pad":
        return []
    value = concrete(equation.inputs[1])
    around = [(low, high) for low, high, between in equation.params["padding_config"] if not between]
    if any(is_symbolic_dim(size) for both in around for size in both):
        return []
    axes = [axis for axis, both in enumerate(around) if any(both)]
    is_plain = len(around) == len(equation.outputs[0].shape) and all(min(both) >= 0 for both in around)
    if len(axes) != 1 or not is_plain or value is None or value != 0:
        return []
    return [(axes[0], int(around[axes[0]][0]))]
