"""Where to cut a step between its loops and the work that runs at once.

Work that runs at once reads values of the loops, each stacked over the steps of a chunk. The cut with the fewest bytes
is not always right after the loop. A readout `S q` of a matrix state is much smaller than S: if the loop makes the
readout too, S need not be stacked.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rnnscan.engine.fission.program import Atom, Equation, Value, outputs_of, total_bytes, values_of


@dataclass(frozen=True)
class Cut:
    """What it takes to have values at once.

    Attributes:
        stacked: values that the loops must stack, and do not stack yet.
        copied: inputs of the step that must be copied for the chunk, and are not yet. A loop reads them where they are.
        at_hand: values that the work reads and that can be had already.
        work: the equations that run at once, but for those that do already.
    """

    stacked: tuple[Value, ...]
    copied: tuple[Value, ...]
    at_hand: tuple[Value, ...]
    work: tuple[Equation, ...]

    @property
    def moved(self) -> int:
        """The bytes that are stacked and copied at each step."""
        return total_bytes([*self.stacked, *self.copied])


class Cuts:
    """Finds cuts, in one pass over the equations of a step that need not run in a loop.

    Args:
        looped: values that the loops make.
        fixed: values that are the same at every step.
    """

    def __init__(self, looped: Iterable[Value], fixed: Collection[Value]) -> None:
        # The values to stack if a value is wanted at once. No entry: it depends on no loop.
        self._stacks = {value: frozenset([value]) for value in looped}
        self._at_hand: set[Value] = set()
        self._fixed = fixed
        self._maker: dict[Value, Equation] = {}

    def add(self, equation: Equation) -> None:
        """Pass on to the next equation."""
        stacks = self._of(equation.inputs)
        for output in equation.outputs:
            self._maker[output] = equation
            if stacks:
                self._stacks[output] = frozenset([output]) if output.nbytes < total_bytes(stacks) else stacks

    def find(self, atoms: Iterable[Atom]) -> Cut:
        """The cheapest cut to have these values at once."""
        stacked, copied, at_hand, work = [], [], [], dict[Equation, None]()
        to_see, seen = values_of(atoms), set[Value]()
        while to_see:
            value = to_see.pop()
            if value in seen or value in self._fixed:
                continue
            seen.add(value)
            equation = self._maker.get(value)
            if value in self._at_hand:
                at_hand.append(value)
            elif value in self._of([value]):
                stacked.append(value)
            elif equation is None:
                copied.append(value)
            else:
                work[equation] = None
                to_see.extend(equation.reads)
        return Cut(tuple(stacked), tuple(copied), tuple(at_hand), tuple(work))

    def take(self, cut: Cut, made: Iterable[Value] = ()) -> None:
        """Make a cut. What it moves and makes, and `made`, can be had at once from now on."""
        self._at_hand.update([*cut.stacked, *cut.copied, *outputs_of(cut.work), *made])

    def take_value(self, value: Value) -> None:
        """Have a loop stack this value. It can be had at once from now on."""
        self._at_hand.add(value)

    def to_stack(self, cut: Cut) -> list[Value]:
        """What loops stack for a cut beside the results of their cycles, which they stack where they are asked to."""
        return [value for value in cut.stacked if value in self._maker]

    def _of(self, atoms: Iterable[Atom]) -> frozenset[Value]:
        """What must still be stacked to have values at once."""
        wanted = (value for value in values_of(atoms) if value not in self._at_hand)
        return frozenset[Value]().union(*(self._stacks.get(value, ()) for value in wanted)) - self._at_hand
