"""The frontier between the loops of a step and its batched work.

Work that is batched over steps reads values of the loops, each stacked over the steps of a chunk. The frontier with the
fewest bytes is not always right after the loop. A readout `S q` of a matrix state is much smaller than S: if the loop
makes the readout too, S need not be stacked.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rnnscan.ir.components import positions
from rnnscan.ir.program import Atom, Equation, Value, outputs_of, total_bytes, values_of
from rnnscan.ir.traits import Kind


@dataclass(frozen=True)
class Frontier:
    """What materializes values for all steps of a chunk.

    Attributes:
        stacked: values that the loops must stack, and do not stack yet.
        copied: inputs of the step that must be copied for the chunk, and are not yet. A loop reads them where they are.
        materialized: values that the work reads and that are materialized already.
        work: the equations that are batched for it, and are not yet.
    """

    stacked: tuple[Value, ...]
    copied: tuple[Value, ...]
    materialized: tuple[Value, ...]
    work: tuple[Equation, ...]

    @property
    def moved(self) -> int:
        """The bytes that are stacked and copied at each step."""
        return total_bytes([*self.stacked, *self.copied])


@dataclass(frozen=True)
class Needs:
    """What a frontier would cost, before it is taken.

    Attributes:
        stacks: whether loops must stack values for it.
        moved: the bytes that are stacked and copied at each step.
        materialized: the bytes of the materialized values that the work reads; None: there are none.
        largest: the bytes of the largest value that the work makes.
        kinds: what the work does with elements.
    """

    stacks: bool
    moved: int
    materialized: int | None
    largest: int
    kinds: frozenset[Kind]

    @property
    def read(self) -> int:
        """The bytes that are read at each step."""
        return self.moved + (self.materialized or 0)


class _Path(NamedTuple):
    """The path that materializes a value: the values where it begins, as bits, and as in `Needs`."""

    begins: int = 0
    largest: int = 0
    kinds: frozenset[Kind] = frozenset()


class Frontiers:
    """Finds frontiers, in one pass over the equations of a step that need not run in a loop.

    Args:
        looped: values that the loops make.
        fixed: values that are the same at every step.
    """

    def __init__(self, looped: Iterable[Value], fixed: Collection[Value]) -> None:
        # The values to stack if a value is to be materialized. No entry: it depends on no loop.
        self._stacks = {value: frozenset([value]) for value in looped}
        self._materialized: set[Value] = set()
        self._fixed = fixed
        self._maker: dict[Value, Equation] = {}
        # Few frontiers are taken of many that are asked about. A path is kept until a value on it is materialized.
        self._paths: dict[Value, _Path] = {}
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

    def find(self, atoms: Iterable[Atom]) -> Frontier:
        """The cheapest frontier that materializes these values."""
        stacked, copied, materialized, work = [], [], [], dict[Equation, None]()
        to_see, seen = values_of(atoms), set[Value]()
        while to_see:
            value = to_see.pop()
            if value in seen or value in self._fixed:
                continue
            seen.add(value)
            equation = self._maker.get(value)
            if value in self._materialized:
                materialized.append(value)
            elif value in self._of([value]):
                stacked.append(value)
            elif equation is None:
                copied.append(value)
            else:
                work[equation] = None
                to_see.extend(equation.reads)
        return Frontier(tuple(stacked), tuple(copied), tuple(materialized), tuple(work))

    def needs(self, atoms: Iterable[Atom]) -> Needs:
        """What the frontier that `find` finds would need, in time that does not grow with its work."""
        begins, largest, kinds = self._joined([value for value in values_of(atoms) if value not in self._fixed])
        ends = [self._numbered[number] for number in positions(begins)]
        materialized = [value for value in ends if value in self._materialized]
        moved = [value for value in ends if value not in self._materialized]
        stacks = any(value in self._stacks for value in moved)
        return Needs(stacks, total_bytes(moved), total_bytes(materialized) if materialized else None, largest, kinds)

    def take(self, frontier: Frontier, results: Iterable[Value] = ()) -> None:
        """Take a frontier. What it moves and computes, and `results`, are materialized from now on."""
        for value in (*frontier.stacked, *frontier.copied, *outputs_of(frontier.work), *results):
            self.take_value(value)

    def take_value(self, value: Value) -> None:
        """Have a loop stack this value. It is materialized from now on."""
        if value in self._materialized:
            return
        self._materialized.add(value)
        changed = [value]
        while changed:
            value = changed.pop()
            if self._paths.pop(value, None) is not None:
                changed += self._read_by.pop(value, [])

    def to_stack(self, frontier: Frontier) -> list[Value]:
        """What loops stack for a frontier besides the results of their cycles, which they stack on request."""
        return [value for value in frontier.stacked if value in self._maker]

    def _joined(self, values: Collection[Value]) -> _Path:
        """The paths of several values together."""
        ahead = [value for value in values if value not in self._paths]
        while ahead:
            value = ahead[-1]
            equation = None if self._begins_at(value) else self._maker[value]
            reads = [] if equation is None else [read for read in equation.reads if read not in self._fixed]
            missing = [read for read in reads if read not in self._paths]
            if missing:
                ahead += missing
                continue
            ahead.pop()
            if value in self._paths:
                continue
            for read in reads:
                self._read_by.setdefault(read, []).append(value)
            self._paths[value] = self._begin(value) if equation is None else _with(equation, self._union(reads))
        return self._union(values)

    def _begins_at(self, value: Value) -> bool:
        return value in self._materialized or value not in self._maker or value in self._stacks.get(value, ())

    def _begin(self, value: Value) -> _Path:
        number = self._numbers.setdefault(value, len(self._numbers))
        if number == len(self._numbered):
            self._numbered.append(value)
        return _Path(1 << number)

    def _union(self, values: Iterable[Value]) -> _Path:
        paths = [self._paths[value] for value in values]
        begins, kinds = 0, frozenset[Kind]()
        for path in paths:
            begins, kinds = begins | path.begins, kinds | path.kinds
        return _Path(begins, max((path.largest for path in paths), default=0), kinds)

    def _of(self, atoms: Iterable[Atom]) -> frozenset[Value]:
        """What must still be stacked to materialize values."""
        wanted = (value for value in values_of(atoms) if value not in self._materialized)
        return frozenset[Value]().union(*(self._stacks.get(value, ()) for value in wanted)) - self._materialized


def _with(equation: Equation, path: _Path) -> _Path:
    """A path with one more equation at its end."""
    largest = max([path.largest, *(output.nbytes for output in equation.outputs)])
    return _Path(path.begins, largest, path.kinds | {equation.kind})
