"""Follow elements that are not finite back through the equations of a body, and see where they begin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rnnscan.inside.nonfinite.bodies import Body
from rnnscan.inside.nonfinite.dependence import Births, dependence, union
from rnnscan.inside.nonfinite.patterns import Mask
from rnnscan.ir.program import Atom, Value, read


KINDS = range(len(Births._fields))


@dataclass(frozen=True)
class Inside:
    """A walk within a loop or branch.

    Attributes:
        walk: the walk.
        operands: for each input of its body the operand of the equation that it is, or is a part of; None: it is the
            carry of an earlier step.
        step: the step, in the order of the inputs; None: the equation is no loop.
        invariant: the number of leading inputs that are the same at each step.
    """

    walk: "Walk"
    operands: list[int | None]
    step: int | None = None
    invariant: int = 0


@dataclass
class Walk:
    """A walk back through a body, from elements of its results.

    Attributes:
        body: the body.
        values: its values.
        inputs: for each input the elements to blame.
        births: the elements that equations make, for each result, by the positions of the equations.
        inside: for loops and branches the first walk within with births of each kind, by their positions.
    """

    body: Body
    values: Mapping[Value, Any]
    inputs: list[Mask] = field(default_factory=list)
    births: dict[int, list[Births | None]] = field(default_factory=dict)
    inside: dict[int, list[Inside | None]] = field(default_factory=dict)

    def first(self, kind: int) -> int | None:
        """The position of the first equation with births of a kind."""
        own = [
            at for at, births in self.births.items() if any(each is not None and np.any(each[kind]) for each in births)
        ]
        within = [at for at, inside in self.inside.items() if inside[kind] is not None]
        return min([*own, *within], default=None)


def walk_back(body: Body, values: Mapping[Value, Any], masks: Sequence[Mask]) -> Walk:
    """Follow elements of a body's results.

    Args:
        body: the body.
        values: all of its values.
        masks: for each result the elements to follow, which are not finite.
    """
    walk = Walk(body, values)
    followed: dict[Atom, Mask] = {}
    for atom, mask in zip(body.outputs, masks, strict=True):
        if isinstance(atom, Value):
            followed[atom] = union(followed.get(atom), mask)
    for position in reversed(range(len(body.equations))):
        equation = body.equations[position]
        of_results = [followed.pop(output, None) for output in equation.outputs]
        if all(mask is None for mask in of_results):
            continue
        operands = [read(atom, values) for atom in equation.inputs]
        inner = body.inner.get(position)
        if inner is not None:
            of_operands, walk.inside[position] = inner.walk(operands, of_results)
        else:
            results = [values[output] for output in equation.outputs]
            pattern = body.pattern(position)
            of_operands, births = dependence(equation, pattern, operands, results, of_results)
            if any(each is not None for each in births):
                walk.births[position] = births
        for atom, mask in zip(equation.inputs, of_operands, strict=True):
            if isinstance(atom, Value):
                followed[atom] = union(followed.get(atom), mask)
    walk.inputs = [followed.get(atom) for atom in body.inputs]
    return walk
