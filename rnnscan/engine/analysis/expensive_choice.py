"""Which expensive values a scan keeps: the most expensive first, unless loops recompute more of its carry for one."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rnnscan.engine.analysis.expensive_values import Derivative, Expensive, ExpensiveValues, cones_with_all_carries
from rnnscan.engine.costs.machine import Machine
from rnnscan.ir.program import Atom, Equation, Program, Value


# The carry leaves that loops can recompute cheaply if these values are kept.
CheapCarries = Callable[[Collection[Atom]], Collection[int]]


@dataclass
class ExpensiveChoice:
    """The values that are kept so far, and the carry leaves that are recomputed for it.

    Attributes:
        program: the step.
        kept: the values that are kept.
        repeats: the carry leaves that y repeats.
        recomputable: the carry leaves that may be recomputed.
        cheap_carries: those that loops can recompute cheaply.
        looped: the equations that lie in loops. To know the value of another one cuts no loop.
        machine: the machine that it runs on.
        expensive: of the kept values, those that were chosen.
    """

    program: Program
    kept: tuple[Atom, ...]
    repeats: Collection[int]
    recomputable: Collection[int]
    cheap_carries: CheapCarries
    looped: Collection[Equation]
    machine: Machine
    expensive: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cheap = frozenset(self.cheap_carries(self.kept))
        self._recomputed = self._cheap
        self._rejected: set[Value] = set()
        self._values = self._values_to_keep()
        self._where_all_carries_are_known = cones_with_all_carries(self.program, self.kept)

    def choose(self, most_bytes: int) -> list[Value]:
        """The values that spare most for their bytes, within so many bytes of each step."""
        left = most_bytes
        while (expensive := self._values.next(left)) is not None:
            if self._keep(expensive):
                left -= expensive.nbytes
            else:
                self._rejected.add(expensive.value)
                self._values.reject(expensive)
        return self.expensive

    def _keep(self, expensive: Expensive) -> bool:
        """Keep a value, if no loop recomputes more of the carry then, but what nothing reads."""
        kept, cones = (*self.kept, expensive.value), self._where_all_carries_are_known
        cheap = frozenset(self.cheap_carries(kept)) if expensive.equation in self.looped else self._cheap
        cone = cones.of(expensive.equation)
        if any(cones.reads(leaf) and leaf not in cone.inputs for leaf in cheap - self._recomputed):
            return False
        cones.remove(cone)
        self._values.keep(expensive)
        self.kept, self._cheap = kept, cheap
        self.expensive.append(expensive.value)
        recomputed = frozenset(leaf for leaf in self.recomputable if leaf in cheap or not cones.reads(leaf))
        if recomputed != self._recomputed:
            more, fewer = recomputed - self._recomputed, self._recomputed - recomputed
            self._recomputed = recomputed
            # A leaf that is read neither before nor after a step changes nothing.
            if fewer or any(map(self._values.reads, more)):
                self._values = self._values_to_keep()
        return True

    def _values_to_keep(self) -> ExpensiveValues:
        new_carry = self.program.new_carry
        stacked = frozenset(range(len(new_carry))).difference(self.repeats, self._recomputed)
        kept = frozenset(self.kept).union(new_carry[i] for i in self.repeats)
        return ExpensiveValues(Derivative(self.program, kept, stacked), self._rejected, self.machine)
