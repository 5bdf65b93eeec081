"""Where to cut a step between its loops and the work that runs at once.

Work that runs at once reads values of the loops, each stacked over the steps of a chunk. The cut with the fewest bytes
is not always right after the loop. A readout `S q` of a matrix state is much smaller than S: if the loop makes the
readout too, S need not be stacked.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rnnscan.ir.components import positions
from rnnscan.ir.program import Atom, Equation, Value, outputs_of, total_bytes, values_of
from rnnscan.ir.traits import Kind


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


@dataclass(frozen=True)
class Needs:
    """What is asked of a cut before it is made.

    Attributes:
        stacks: whether loops must stack values for it.
        moved: the bytes that are stacked and copied at each step.
        at_hand: the bytes of the values that the work reads and that can be had already; None: there are none.
        largest: the bytes of the largest value that the work makes.
        kinds: what the work does with elements.
    """

    stacks: bool
    moved: int
    at_hand: int | None
    largest: int
    kinds: frozenset[Kind]

    @property
    def read(self) -> int:
        """The bytes that are read at each step."""
        return self.moved + (self.at_hand or 0)


class _Way(NamedTuple):
    """The way to have a value at once: the values where it begins, as bits, and as in `Needs`."""

    begins: int = 0
    largest: int = 0
    kinds: frozenset[Kind] = frozenset()


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
        # Few cuts are made, but many are asked for. A way is kept until a value on it can be had at once.
        self._ways: dict[Value, _Way] = {}
        self._read_by: dict[Value, list[Value]] = {}
        self._numbers: dict[Value, int] = {}
        self._numbered: list[Value] = []

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

    def needs(self, atoms: Iterable[Atom]) -> Needs:
        """What the cut that `find` finds would need, in time that does not grow with its work."""
        begins, largest, kinds = self._joined([value for value in values_of(atoms) if value not in self._fixed])
        ends = [self._numbered[number] for number in positions(begins)]
        at_hand = [value for value in ends if value in self._at_hand]
        moved = [value for value in ends if value not in self._at_hand]
        stacks = any(value in self._stacks for value in moved)
        return Needs(stacks, total_bytes(moved), total_bytes(at_hand) if at_hand else None, largest, kinds)

    def take(self, cut: Cut, made: Iterable[Value] = ()) -> None:
        """Make a cut. What it moves and makes, and `made`, can be had at once from now on."""
        for value in (*cut.stacked, *cut.copied, *outputs_of(cut.work), *made):
            self.take_value(value)

    def take_value(self, value: Value) -> None:
        """Have a loop stack this value. It can be had at once from now on."""
        if value in self._at_hand:
            return
        self._at_hand.add(value)
        changed = [value]
        while changed:
            value = changed.pop()
            if self._ways.pop(value, None) is not None:
                changed += self._read_by.pop(value, [])

    def to_stack(self, cut: Cut) -> list[Value]:
        """What loops stack for a cut beside the results of their cycles, which they stack where they are asked to."""
        return [value for value in cut.stacked if value in self._maker]

    def _joined(self, values: Collection[Value]) -> _Way:
        """The ways of several values together."""
        ahead = [value for value in values if value not in self._ways]
        while ahead:
            value = ahead[-1]
            equation = None if self._begins_at(value) else self._maker[value]
            reads = [] if equation is None else [read for read in equation.reads if read not in self._fixed]
            missing = [read for read in reads if read not in self._ways]
            if missing:
                ahead += missing
                continue
            ahead.pop()
            if value in self._ways:
                continue
            for read in reads:
                self._read_by.setdefault(read, []).append(value)
            self._ways[value] = self._begin(value) if equation is None else _with(equation, self._union(reads))
        return self._union(values)

    def _begins_at(self, value: Value) -> bool:
        return value in self._at_hand or value not in self._maker or value in self._stacks.get(value, ())

    def _begin(self, value: Value) -> _Way:
        number = self._numbers.setdefault(value, len(self._numbers))
        if number == len(self._numbered):
            self._numbered.append(value)
        return _Way(1 << number)

    def _union(self, values: Iterable[Value]) -> _Way:
        ways = [self._ways[value] for value in values]
        begins, kinds = 0, frozenset[Kind]()
        for way in ways:
            begins, kinds = begins | way.begins, kinds | way.kinds
        return _Way(begins, max((way.largest for way in ways), default=0), kinds)

    def _of(self, atoms: Iterable[Atom]) -> frozenset[Value]:
        """What must still be stacked to have values at once."""
        wanted = (value for value in values_of(atoms) if value not in self._at_hand)
        return frozenset[Value]().union(*(self._stacks.get(value, ()) for value in wanted)) - self._at_hand


def _with(equation: Equation, way: _Way) -> _Way:
    """A way with one more equation at its end."""
    largest = max([way.largest, *(output.nbytes for output in equation.outputs)])
    return _Way(way.begins, largest, way.kinds | {equation.kind})
