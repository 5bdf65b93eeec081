"""The work that only one value needs.

Source: Cong and Ding 1994, "On area/depth trade-off in LUT-based FPGA technology mapping", who call it the maximum
fanout-free cone of a node.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from rnnscan.ir.program import Atom, Equation, Value


class Cone(NamedTuple):
    """An equation, and the work that runs for it only.

    Attributes:
        equations: the equation, and those that run for it only.
        inputs: the numbers of the inputs that are read for it only.
        uses: how often it uses each equation and each input, itself aside.
    """

    equations: list[Equation]
    inputs: list[int]
    uses: Counter[Equation | int]


class Cones:
    """The cones of equations, found from the number of uses of each: it takes time with the size of a cone.

    Args:
        equations: equations in order, of which each is needed.
        wanted: values that are wanted. They are in no cone but their own.
        inputs: value -> the numbers of the inputs that each reader of the value reads.
        wanted_inputs: inputs that are wanted.
        known: results of the equations that are known without them.
    """

    def __init__(
        self,
        equations: Sequence[Equation],
        wanted: Iterable[Atom],
        inputs: Mapping[Value, Sequence[int]] = MappingProxyType({}),
        wanted_inputs: Iterable[int] = (),
        known: Set[Atom] = frozenset(),
    ) -> None:
        maker = {output: equation for equation in equations for output in equation.outputs if output not in known}

        def behind(value: Value) -> list[Equation | int]:
            return [*([maker[value]] if value in maker else []), *inputs.get(value, ())]

        self._operands = {
            equation: [node for value in equation.reads for node in behind(value)] for equation in equations
        }
        self._uses: Counter[Equation | int] = Counter(wanted_inputs)
        self._uses.update(maker[atom] for atom in wanted if atom in maker)
        for operands in self._operands.values():
            self._uses.update(operands)

    def has(self, equation: Equation) -> bool:
        """Whether an equation is needed."""
        return equation in self._operands

    def reads(self, position: int) -> bool:
        """Whether an input is read by an equation, or wanted."""
        return self._uses[position] > 0

    def of(self, equation: Equation) -> Cone:
        """The cone of an equation; an empty one if it is not needed."""
        cone = Cone([], [], Counter())
        pending = [equation] if equation in self._operands else []
        while pending:
            last = pending.pop()
            cone.equations.append(last)
            for node in self._operands[last]:
                cone.uses[node] += 1
                if cone.uses[node] == self._uses[node]:
                    if isinstance(node, int):
                        cone.inputs.append(node)
                    elif node in self._operands:  # Else it is the maker of a value that is known by now.
                        pending.append(node)
        return cone

    def remove(self, cone: Cone) -> None:
        """Take the equations of a cone out: the result of its equation is known."""
        self._uses.subtract(cone.uses)
        for equation in cone.equations:
            del self._operands[equation]
