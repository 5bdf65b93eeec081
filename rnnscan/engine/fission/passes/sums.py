"""The sums of a program, each with all of its terms, and what is quicker than to add them one by one."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import jax
from jax.export import is_symbolic_dim

from rnnscan.engine.fission.analysis.components import Components
from rnnscan.engine.fission.analysis.split import needed
from rnnscan.engine.fission.heuristics import too_large_to_feed
from rnnscan.engine.fission.passes.products import following, is_rows_by_matrix
from rnnscan.engine.fission.trace import (
    Atom,
    Constant,
    Equation,
    Program,
    Value,
    concatenated,
    values_of,
    without_repeats,
)


# From the terms of a sum to equations, and to the terms to add up after them, of which the first has the shape of the
# sum. No equations: the sum stays as it is.
Rewrite: TypeAlias = Callable[[list[Atom]], tuple[Sequence[Equation], Sequence[Atom]]]

_ADDITIONS = frozenset({"add", "add_any"})


class Sums:
    """The sums of a program. A sum within another one, that nothing else reads, is part of it.

    Args:
        program: one step.

    Attributes:
        equations: those of its equations that its outputs follow from.
        maker: the equation that makes each value.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.equations = needed(program.equations, program.outputs)
        self.maker: dict[Atom, Equation] = {out: equation for equation in self.equations for out in equation.outputs}
        self._uses = Counter(value for equation in self.equations for value in values_of(equation.inputs))
        self._uses.update(values_of(program.outputs))

    def rewritten(self, rewrite: Rewrite) -> Program:
        """The program with other sums in place of its own."""
        additions = [equation for equation in self.equations if equation.primitive.name in _ADDITIONS]
        inner = {id(self._inner(equation, atom)) for equation in additions for atom in equation.inputs}
        whole = {equation for equation in additions if id(equation) not in inner}
        equations: list[Equation] = []
        for equation in self.equations:
            made, terms = rewrite(self._terms(equation)) if equation in whole else ((), ())
            equations += _sum(made, terms, equation) if made else [equation]
        return replace(self.program, equations=tuple(needed(equations, self.program.outputs)))

    def is_read_once(self, atom: Atom) -> bool:
        """Whether one equation reads a value, or it is an output, and nothing else."""
        return isinstance(atom, Value) and self._uses[atom] == 1

    def _terms(self, equation: Equation) -> list[Atom]:
        terms: list[Atom] = []
        to_see = [*reversed(equation.inputs)]
        while to_see:
            atom = to_see.pop()
            inner = self._inner(equation, atom)
            if inner:
                to_see.extend(reversed(inner.inputs))
            else:
                terms.append(atom)
        return terms

    def _inner(self, equation: Equation, atom: Atom) -> Equation | None:
        """The sum of the same kind that makes an operand of a sum, for it alone."""
        inner = self.maker.get(atom)
        return inner if inner and inner.primitive is equation.primitive and self.is_read_once(atom) else None


def merge_products(
    program: Program, invariant: Iterable[Value], carry: Sequence[Value], new_carry: Sequence[Atom]
) -> Program:
    """Have sums of products, `x @ w + h @ u`, made as one product: `[x h] @ [w; u]`.

    Where x and h wait for the same loops. If for none, and they are not made of much larger values: then the product is
    made for a chunk of steps, and what several write, and their sum reads, does not fit into a cache.

    Args:
        program: one step.
        invariant: inputs that are the same at every step.
        carry: inputs that are the loop's carry.
        new_carry: outputs that are the carry of the next step to run.

    Returns:
        The same program with fewer products.
    """
    sums = Sums(program)
    fixed = following(sums.equations, invariant)
    components = Components(sums.equations, carry, new_carry)

    def kind(term: Atom) -> Hashable:
        """Equal for terms that can be merged; None for what cannot."""
        product = sums.maker.get(term)
        if product is None or not sums.is_read_once(term) or not is_rows_by_matrix(product, fixed):
            return None
        x, weight = product.inputs
        if not isinstance(x, Value) or len(x.shape) != 2:
            return None
        loops = components.feeding(x)
        if not loops and too_large_to_feed(x, needed(sums.equations, [x])):
            return None
        return loops, x.dtype, weight.dtype, product.operation

    def merged(products: Sequence[Equation]) -> list[Equation]:
        """Equations of which the last one makes the sum of products."""
        xs, weights = zip(*(product.inputs for product in products), strict=True)
        x, weight = concatenated(xs, axis=1), concatenated(weights, axis=0)
        inputs, outputs = (x.outputs[0], weight.outputs[0]), (Value(products[0].outputs[0].aval),)
        return [x, weight, replace(products[0], inputs=inputs, outputs=outputs)]

    def rewrite(terms: list[Atom]) -> tuple[Sequence[Equation], Sequence[Atom]]:
        made: list[Equation] = []
        left = dict.fromkeys(terms)
        for group in _grouped(terms, kind):
            made += merged([sums.maker[term] for term in group])
            left = dict.fromkeys([*made[-1].outputs, *(term for term in left if term not in group)])
        return made, [*left]

    # Several sums of one x, or one weight, are concatenated once.
    return without_repeats(sums.rewritten(rewrite))


def concatenate_pads(program: Program) -> Program:
    """Have a sum of pieces that are padded with zeros to where they belong, and leave no gap, made as a concatenation.

    That is the cotangent of `z[..., :n]` and `z[..., n:]`. XLA would choose between a piece and a zero, element by
    element, and add.

    Args:
        program: one step.

    Returns:
        The same program with fewer pads.
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
    """The axis along which an equation pads with zeros, and where its operand begins; nothing for any other one."""
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


def _grouped(terms: Iterable[Atom], kind: Callable[[Atom], Hashable]) -> list[list[Atom]]:
    """The terms of each kind of which there are several."""
    groups: dict[Hashable, list[Atom]] = {}
    for term in terms:
        groups.setdefault(kind(term), []).append(term)
    return [group for key, group in groups.items() if key is not None and len(group) > 1]


def _sum(made: Sequence[Equation], terms: Sequence[Atom], last: Equation) -> list[Equation]:
    """Equations that make terms and add them up to what the given one made."""
    equations, total = [*made], terms[0]
    for term in terms[1:]:
        equations.append(replace(last, inputs=(total, term), outputs=(Value(last.outputs[0].aval),)))
        total = equations[-1].outputs[0]
    return [replace(one, outputs=last.outputs) if total in one.outputs else one for one in equations]
