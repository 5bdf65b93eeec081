"""The sums of a program, each with all its terms, for passes that rewrite sums."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Program, Value, values_of


# From the terms of a sum that have its shape to new equations, and the terms to add after them. No equations: keep the
# sum.
Rewrite: TypeAlias = Callable[[list[Atom]], tuple[Sequence[Equation], Sequence[Atom]]]

_ADDITIONS = frozenset({"add", "add_any"})


class Sums:
    """The sums of a program. A sum that only another sum reads is part of it.

    Args:
        program: one step.

    Attributes:
        equations: the equations that its outputs depend on.
        maker: the equation that makes each value.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.equations = needed(program.equations, program.outputs)
        self.maker = program.maker
        self._uses = Counter(value for equation in self.equations for value in equation.reads)
        self._uses.update(values_of(program.outputs))

    def rewritten(self, rewrite: Rewrite) -> Program:
        """The program with rewritten sums."""
        additions = {equation for equation in self.equations if equation.name in _ADDITIONS}
        whole = additions - {self._inner(equation, atom) for equation in additions for atom in equation.inputs}
        equations: list[Equation] = []
        for equation in self.equations:
            terms, shape = self._terms(equation) if equation in whole else [], equation.outputs[0].shape
            new_equations, others = rewrite([term for term in terms if term.shape == shape]) if terms else ((), ())
            # JAX adds terms of size 1 along an axis, and numbers, as they are.
            smaller = (term for term in terms if term.shape != shape)
            equations += _sum(new_equations, [*others, *smaller], equation) if new_equations else [equation]
        return replace(self.program, equations=tuple(needed(equations, self.program.outputs)))

    def terms(self, atom: Atom) -> list[Atom]:
        """The terms of the sum that a value is; the value itself if it is none."""
        equation = self.maker.get(atom)
        return self._terms(equation) if equation is not None and equation.name in _ADDITIONS else [atom]

    def is_read_once(self, atom: Atom) -> bool:
        """Whether a value is read exactly once, by an equation or as an output."""
        return isinstance(atom, Value) and self._uses[atom] == 1

    def _terms(self, equation: Equation) -> list[Atom]:
        terms: list[Atom] = []
        pending = [*reversed(equation.inputs)]
        while pending:
            atom = pending.pop()
            inner = self._inner(equation, atom)
            if inner:
                pending.extend(reversed(inner.inputs))
            else:
                terms.append(atom)
        return terms

    def _inner(self, equation: Equation, atom: Atom) -> Equation | None:
        """The sum that makes an operand of a sum, if it has no other reader."""
        inner = self.maker.get(atom)
        return inner if inner and inner.primitive is equation.primitive and self.is_read_once(atom) else None


def _sum(new_equations: Sequence[Equation], terms: Sequence[Atom], last: Equation) -> list[Equation]:
    """Equations that make terms and add them, into the outputs of the last one."""
    equations, total = [*new_equations], terms[0]
    for term in terms[1:]:
        equations.append(replace(last, inputs=(total, term), outputs=(Value(last.outputs[0].aval),)))
        total = equations[-1].outputs[0]
    return [
        replace(equation, outputs=last.outputs) if total in equation.outputs else equation for equation in equations
    ]
