"""Values that the backward pass is given, and need not compute again: kept ones, and new carries."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax

from rnnscan.engine.fission.program import Atom, Equation, Program, needed


# The functions whose derivatives in JAX are functions of their results alone.
_FROM_RESULTS = frozenset({"exp", "logistic", "sqrt", "tanh"})


def derives_from_result(equation: Equation) -> bool:
    """Whether the derivative of an equation follows from its result."""
    return equation.primitive.name in _FROM_RESULTS


@jax.custom_jvp
def restored(computed: Any, kept: Any) -> Any:
    """The kept value, whose derivative is that of the computed one."""
    return kept


@restored.defjvp
def _restored_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[1], tangents[0]


def reading_kept(program: Program, pairs: int) -> Program:
    """The program without its last outputs, which reads kept values in place of computed ones.

    JAX differentiates many functions by their results: `exp`, `tanh`, and by a rule of its own `logaddexp`. The result
    that such a rule computes is the kept value, and then nothing needs it.

    Args:
        program: a program whose last stacked outputs are values that it computes, each followed by the kept value.
        pairs: the number of these pairs.
    """
    size = len(program.stacked) - 2 * pairs
    same = dict(zip(program.stacked[size::2], program.stacked[size + 1 :: 2], strict=True))

    def read(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
        return tuple(same.get(atom, atom) for atom in atoms)

    equations = [
        equation if same.keys().isdisjoint(equation.inputs) else replace(equation, inputs=read(equation.inputs))
        for equation in program.equations
    ]
    stacked = read(program.stacked[:size])
    return replace(program, equations=tuple(needed(equations, stacked)), stacked=stacked)
