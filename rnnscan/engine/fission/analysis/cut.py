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
        reads: all values of each step that the work reads, the stacked ones and the known ones.
        work: the equations that run at once.
    """

    stacked: tuple[Value, ...]
    reads: tuple[Value, ...]
    work: tuple[Equation, ...]


class Cuts:
    """Finds cuts, in one pass over the equations of a step that need not run in a loop.

    Args:
        looped: values that the loops make.
        fixed: values that are the same at every step.

    Attributes:
        maker: the equation that makes each value, of those passed so far.
    """

    def __init__(self, looped: Iterable[Value], fixed: Collection[Value]) -> None:
        # The values to stack if a value is wanted at once. No entry: it depends on no loop.
        self._stacks = {value: frozenset([value]) for value in looped}
        self._taken: set[Value] = set()
        self._fixed = fixed
        self.maker: dict[Value, Equation] = {}

    def add(self, equation: Equation) -> None:
        """Pass on to the next equation."""
        stacks = self._of(equation.inputs)
        for output in equation.outputs:
            self.maker[output] = equation
            if stacks:
                self._stacks[output] = frozenset([output]) if output.nbytes < total_bytes(stacks) else stacks

    def find(self, atoms: Iterable[Atom]) -> Cut:
        """The cheapest cut to have these values at once."""
        stacked, reads, work = [], [], dict[Equation, None]()
        to_see, seen = values_of(atoms), set[Value]()
        while to_see:
            value = to_see.pop()
            if value in seen or value in self._fixed:
                continue
            seen.add(value)
            equation, is_stacked = self.maker.get(value), value in self._of([value])
            if equation is None or is_stacked:
                reads.append(value)
                stacked += [value] if is_stacked else []
            else:
                work[equation] = None
                to_see.extend(values_of(equation.inputs))
        return Cut(tuple(stacked), tuple(reads), tuple(work))

    def take(self, cut: Cut, made: Iterable[Value] = ()) -> None:
        """Make a cut. What it stacks and makes, and `made`, can be had at once from now on."""
        self._taken.update([*cut.stacked, *outputs_of(cut.work), *made])

    def _of(self, atoms: Iterable[Atom]) -> frozenset[Value]:
        """What must still be stacked to have values at once."""
        wanted = (value for value in values_of(atoms) if value not in self._taken)
        return frozenset[Value]().union(*(self._stacks.get(value, ()) for value in wanted)) - self._taken
