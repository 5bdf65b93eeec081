"""Where to cut the work after a loop: the values that are cheapest to stack for what runs at once.

Work that runs at once reads values of the loop, each stacked over the steps of a chunk. A readout `S q` of a matrix
state is much smaller than S. If the loop makes the readout too, S need not be stacked.
"""

from collections.abc import Collection, Iterable, Sequence

from rnnscan.engine.fission.program import Atom, Equation, Value, outputs_of, values_of


class Stacks:
    """The values of loops that are stacked so far, and what more would cost.

    Args:
        equations: the equations that vary from step to step, in order.
        looped: those that must run step by step.
        carry: the carry.
    """

    def __init__(self, equations: Sequence[Equation], looped: Collection[Equation], carry: Iterable[Value]) -> None:
        self._maker = {output: equation for equation in equations for output in equation.outputs}
        # What it takes to have a value at once, in bytes a step. A value without an entry depends on no loop.
        self._bytes = {value: value.nbytes for value in [*carry, *outputs_of(looped)]}
        for equation in equations:
            if equation not in looped and any(atom in self._bytes for atom in equation.inputs):
                self._bytes.update((output, self._through(output)) for output in equation.outputs)

    def cost(self, atoms: Iterable[Atom]) -> int:
        """The bytes per step that are stacked if these values are wanted at once."""
        return sum(self._bytes.get(value, 0) for value in dict.fromkeys(values_of(atoms)))

    def stack(self, atoms: Iterable[Atom]) -> list[Value]:
        """Want values at once. Returns the values that the loops stack for them, which cost nothing from now on."""
        found: dict[Value, None] = {}
        to_see = values_of(atoms)
        while to_see:
            value = to_see.pop()
            if not self._bytes.get(value):
                continue
            equation = self._maker.get(value)
            if equation is None or self._bytes[value] < self._of_inputs(equation):
                found[value] = None
            elif equation.outputs
            self._bytes[value] = 0
        return list(found)
