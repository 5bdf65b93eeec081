"""Expensive values: those that take long to compute again, for their bytes.

The derivative of a step reads some of its values. To recompute them takes the work that leads to them from the carry,
the input and the kept values. A value is expensive if keeping it spares more of that work than it takes to write and
read it.
"""

from collections.abc import Iterable, Iterator, Set
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.cones import Cone, Cones
from rnnscan.engine.analysis.derivative_reads import read_by_derivatives
from rnnscan.engine.costs.machine import Machine
from rnnscan.ir.dataflow import needed, partition
from rnnscan.ir.program import Atom, Equation, Program, Value, inputs_of, total_bytes, values_of
from rnnscan.ir.traits import Kind


# The same values as their operand, which is as good to keep.
_VIEWS = (Kind.SAME, Kind.VIEW)
# A bfloat16 cell took 1.1 to 1.3 of the time with a 16-bit value kept.
_LEAST_ITEM_BYTES = 4


class Expensive(NamedTuple):
    """Values to keep.

    Attributes:
        values: the results of an equation that something reads.
        equation: the equation.
        nbytes: the bytes that keeping them takes at each step, less those of the carry leaves that nothing reads then.
    """

    values: list[Value]
    equation: Equation
    nbytes: int


class Derivative:
    """The values that the derivative of a step reads, and the work of recomputing them.

    Args:
        program: the step.
        kept: values that are kept in addition to the carry and the input.
        stacked_carry: the positions of the carry leaves that are kept before every step. Their new values are known.

    Attributes:
        read: the values that are read.
        known: those that are kept, and the new values of the stacked carry leaves.
        wanted: those that are not known.
        again: the equations that run again at each step.
        cones: their cones. The inputs are the stacked carry leaves, before or after a step.
    """

    def __init__(self, program: Program, kept: frozenset[Atom], stacked_carry: frozenset[int]) -> None:
        self.program = program
        self.read = dict.fromkeys(values_of(read_by_derivatives(program)))
        known, positions = {*kept}, dict[Value, list[int]]()
        for index in stacked_carry:
            known.add(program.new_carry[index])
            for value in values_of([program.carry[index], program.new_carry[index]]):
                positions.setdefault(value, []).append(index)
        self.known = known
        self.wanted = [value for value in self.read if value not in known]
        self.again = needed(partition(program.equations, program.fixed | known)[1], self.wanted, known)
        read_leaves = [index for value in self.read for index in positions.get(value, ())]
        self.cones = Cones(self.again, self.wanted, positions, read_leaves, known)


def cones_with_all_carries(program: Program, kept: Iterable[Atom]) -> Cones:
    """The cones of the work that runs again if these values are kept, and the carry before and after each step."""
    return Derivative(program, frozenset(kept), frozenset(range(len(program.carry)))).cones


class ExpensiveValues:
    """The expensive values of a derivative, the most expensive first.

    An equation is looked at again only where a value that is kept changes its cone, so that all together take time with
    the number of equations, as long as their cones do not lie within each other.

    Args:
        derivative: the derivative.
        rejected: values that are not to be kept.
        machine: the machine that it runs on.
    """

    def __init__(self, derivative: Derivative, rejected: Set[Value], machine: Machine) -> None:
        self._machine, program = machine, derivative.program
        self._carry, self._cones = program.carry, derivative.cones
        self._times = {equation: machine.nanoseconds(equation, program.fixed) for equation in derivative.again}
        self._read = {*inputs_of(derivative.again), *derivative.wanted} - derivative.known
        self._place = {equation: place for place, equation in enumerate(derivative.again)}
        self._cone_of: dict[Equation, Cone] = {}
        self._whose_cone: dict[Equation | int, set[Equation]] = {}
        self._waiting: list[tuple[float, int, int, Cone, Expensive]] = []
        self._too_large: list[tuple[float, int, int, Cone, Expensive]] = []
        self._most_bytes = self._judged = 0
        for equation in self._candidates(derivative.wanted):
            if rejected.isdisjoint(equation.outputs):
                self._judge(equation)

    def next(self, most_bytes: int) -> Expensive | None:
        """The value that spares most for its bytes, of those that were not returned yet; None if none is expensive.

        Args:
            most_bytes: the most bytes that it may take.
        """
        if most_bytes > self._most_bytes:
            self._waiting += self._too_large
            self._too_large = []
            heapify(self._waiting)
        self._most_bytes = most_bytes
        while self._waiting:
            entry = heappop(self._waiting)
            *_, cone, expensive = entry
            if self._cone_of.get(expensive.equation) is not cone:
                continue  # It was looked at again since.
            if expensive.nbytes <= most_bytes:
                return expensive
            self._too_large.append(entry)
        return None

    def reads(self, leaf: int) -> bool:
        """Whether a stacked carry leaf is read."""
        return self._cones.reads(leaf)

    def keep(self, expensive: Expensive) -> None:
        """Keep a value. What only its equation needs does not run again."""
        cone = self._cone_of[expensive.equation]
        touched = [*cone.equations, *cone.uses]
        changed = {equation for node in touched for equation in self._whose_cone.pop(node, ())}
        self._cones.remove(cone)
        for equation in sorted(changed, key=self._place.__getitem__):
            if self._cone_of.pop(equation, None) is not None and self._cones.has(equation):
                self._judge(equation)

    def reject(self, expensive: Expensive) -> None:
        """Do not keep a value."""
        del self._cone_of[expensive.equation]

    def _judge(self, equation: Equation) -> None:
        """Let an equation wait if its results are expensive."""
        values = self._read_of(equation)
        cone = self._cone_of[equation] = self._cones.of(equation)
        for node in (equation, *cone.uses):
            self._whose_cone.setdefault(node, set()).add(equation)
        written = total_bytes(values)
        nbytes = written - total_bytes(self._carry[index] for index in cone.inputs)
        spared = sum(self._times[member] for member in cone.equations) - self._machine.nanoseconds_to_keep(
            max(0, nbytes)
        )
        # Bytes that it takes the place of still have to be written.
        gain = spared / max(nbytes, written // 8, 1)
        if gain > 0:
            self._judged += 1  # Else equal entries of one equation would be compared by their cones.
            expensive = Expensive(values, equation, nbytes)
            heappush(self._waiting, (-gain, self._place[equation], self._judged, cone, expensive))

    def _candidates(self, wanted: Iterable[Value]) -> Iterator[Equation]:
        """The makers of values that are read, or reduced from many, which may take longer to recompute than to keep.

        The time of a path is an upper bound: work that two operands share counts twice.
        """
        times, views = dict[Value, float](), set(wanted)
        for equation in reversed(self._times):
            if equation.kind in _VIEWS and not views.isdisjoint(equation.outputs):
                views.update(equation.reads)
        for equation in self._times:
            kind, values = equation.kind, self._read_of(equation)
            time = self._times[equation] + sum(times.get(operand, 0.0) for operand in equation.reads)
            times.update(dict.fromkeys(equation.outputs, time))
            is_read = not views.isdisjoint(values) or kind in (Kind.PRODUCT, Kind.REDUCE)
            # JAX sorts the permutation of an LU factor for the derivative, once for each copy of it.
            has_integers_too = len(equation.outputs) > 1 and not all(map(is_float, values))
            may_be_kept = is_read and not has_integers_too and kind not in _VIEWS and not any(map(_is_narrow, values))
            if may_be_kept and time > self._machine.nanoseconds_to_keep(0):
                yield equation

    def _read_of(self, equation: Equation) -> list[Value]:
        return [value for value in equation.outputs if value in self._read]


def _is_narrow(value: Value) -> bool:
    return is_float(value) and value.dtype.itemsize < _LEAST_ITEM_BYTES
