"""The frontier between the loops of a step and its batched work.

Work that is batched over steps reads values of the loops, each stacked over the steps of a chunk. The frontier with the
fewest bytes is not always right after the loop. A readout `S q` of a matrix state is much smaller than S: if the loop
makes the readout too, S need not be stacked.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rnnscan.ir.components import positions, union
from rnnscan.ir.program import Atom, Equation, Value, outputs_of, total_bytes, values_of
from rnnscan.ir.traits import Kind


@dataclass(frozen=True)
class Frontier:
    """What materializes values for all steps of a chunk.

    Attributes:
        wanted: the values.
        stacked: values that the loops must stack, and do not stack yet.
        copied: inputs of the step that must be copied for the chunk, and are not yet. A loop reads them where they are.
        materialized: values that the work reads and that are materialized already.
        largest: the bytes of the largest value that the work makes.
        has_product: whether a product is among the work.
    """

    wanted: Sequence[Value]
    stacked: Sequence[Value]
    copied: Sequence[Value]
    materialized: Sequence[Value]
    largest: int
    has_product: bool

    @property
    def moved(self) -> int:
        """The bytes that are stacked and copied at each step."""
        return total_bytes([*self.stacked, *self.copied])

    @property
    def read(self) -> int:
        """The bytes that are read at each step."""
        return self.moved + total_bytes(self.materialized)


class _Path(NamedTuple):
    """The path that materializes a value: the values where it begins, as bits, and as in `Frontier`."""

    begins: int = 0
    largest: int = 0
    has_product: bool = False


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
        self._numbered: list[Value] = []

    def add(self, equation: Equation) -> None:
        """Pass on to the next equation."""
        stacks = self._of(equation.inputs)
        for output in equation.outputs:
            self._maker[output] = equation
            if stacks:
                self._stacks[output] = frozenset([output]) if output.nbytes < total_bytes(stacks) else stacks

    def find(self, atoms: Iterable[Atom]) -> Frontier:
        """The cheapest frontier that materializes these values, in time that does not grow with its work."""
        wanted = [value for value in values_of(atoms) if value not in self._fixed]
        path = self._joined(wanted)
        begins = [self._numbered[number] for number in positions(path.begins)]
        moved = [value for value in begins if value not in self._materialized]
        return Frontier(
            wanted,
            stacked=[value for value in moved if value in self._stacks],
            copied=[value for value in moved if value not in self._stacks],
            materialized=[value for value in begins if value in self._materialized],
            largest=path.largest,
            has_product=path.has_product,
        )

    def work(self, frontier: Frontier) -> list[Equation]:
        """The equations that are batched for a frontier, and are not yet."""
        begins = {*frontier.stacked, *frontier.copied, *frontier.materialized}
        work, ahead = dict[Equation, None](), [*frontier.wanted]
        while ahead:
            value = ahead.pop()
            if value not in begins and self._maker[value] not in work:
                work[self._maker[value]] = None
                ahead += [read for read in self._maker[value].reads if read not in self._fixed]
        return [*work]

    def take(self, frontier: Frontier, batched: Iterable[Equation]) -> None:
        """Take a frontier for equations. What it moves, and what these make, is materialized from now on."""
        for value in (*frontier.stacked, *frontier.copied, *outputs_of(batched)):
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
        """The path that begins with a value. Once the value is materialized, no path has its earlier number."""
        self._numbered.append(value)
        return _Path(1 << len(self._numbered) - 1)

    def _union(self, values: Iterable[Value]) -> _Path:
        paths = [self._paths[value] for value in values]
        begins = union([path.begins for path in paths])
        largest = max((path.largest for path in paths), default=0)
        return _Path(begins, largest, any(path.has_product for path in paths))

    def _of(self, atoms: Iterable[Atom]) -> frozenset[Value]:
        """What must still be stacked to materialize values."""
        wanted = (value for value in values_of(atoms) if value not in self._materialized)
        return frozenset[Value]().union(*(self._stacks.get(value, ()) for value in wanted)) - self._materialized


def _with(equation: Equation, path: _Path) -> _Path:
    """A path with one more equation at its end."""
    largest = max([path.largest, *(output.nbytes for output in equation.outputs)])
    return _Path(path.begins, largest, path.has_product or equation.kind is Kind.PRODUCT)
