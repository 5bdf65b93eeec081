"""What a compiled program costs: its instructions, its loops, and how often each instruction runs."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from rnnscan._util import hlo
from rnnscan._util.hlo import Instruction


@dataclass(frozen=True)
class Loop:
    """A loop.

    Attributes:
        trips: how often it runs.
        cost: the cost of a trip, with that of the loops in it.
        inner: the loops in it.
    """

    trips: int
    cost: int
    inner: "tuple[Loop, ...]"

    def __str__(self) -> str:
        return f"{self.trips} x {self.cost}" + (f" ({loops_in_words(self.inner)})" if self.inner else "")


def loops_in_words(loops: tuple[Loop, ...]) -> str:
    """Trips and cost of each loop, those with an inner loop with it in parentheses."""
    return ", ".join(map(str, loops))


@dataclass(frozen=True)
class Placed:
    """An instruction, the computation that it is in, and how often it runs."""

    instruction: Instruction
    computation: str
    times: int


# They launch nothing.
FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "opt-barrier"}
)
_CALLS = frozenset({"call", "conditional", "async-start"})


def launches(instruction: Instruction) -> int:
    """The kernels that an instruction launches on a GPU, without those of the computations that it calls."""
    free = instruction.kind in FREE or instruction.kind in _CALLS or instruction.kind.endswith("-done")
    return int(not free)


def cycles(instruction: Instruction) -> int:
    """The cycles of an instruction, by the estimate of the TPU's compiler; 0 where it gives none."""
    found = re.search(r'"estimated_cycles":"?(\d+)', instruction.rest)
    return int(found[1]) if found else 0


Cost = Callable[[Instruction], int]


@dataclass(frozen=True)
class Program(hlo.Program):
    """An optimised module."""

    def cost(self, cost: Cost) -> tuple[int, tuple[Loop, ...]]:
        """The total over all trips, and the loops."""
        return self._cost(self.entry, cost)

    def placed(self) -> Iterator[Placed]:
        """All instructions that run, those of loops and calls among them."""
        yield from self._placed(self.entry, 1)

    def _cost(self, computation: str, cost: Cost) -> tuple[int, tuple[Loop, ...]]:
        total, loops = 0, []
        for instruction in self.computations[computation]:
            if instruction.kind == "while":
                inner, nested = self._cost(str(instruction.attribute("body")), cost)
                loops.append(Loop(self.trips(instruction), inner, nested))
                total += loops[-1].trips * inner
                continue
            total += cost(instruction)
            for callee in self._called(instruction):
                inner, nested = self._cost(callee, cost)
                total += inner
                loops += nested
        return total, tuple(loops)

    def _placed(self, computation: str, times: int) -> Iterator[Placed]:
        for instruction in self.computations[computation]:
            if instruction.kind == "while":
                trips = times * self.trips(instruction)
                yield from self._placed(str(instruction.attribute("body")), trips)
                continue
            yield Placed(instruction, computation, times)
            for callee in self._called(instruction):
                yield from self._placed(callee, times)

    def _called(self, instruction: Instruction) -> list[str]:
        """The computations that a call runs. Those of a fusion are part of its kernel."""
        return instruction.callees if instruction.kind in _CALLS else []


_BYTES = {"pred": 1, "c64": 8, "c128": 16, "token": 0} | {
    f"{kind}{bits}": bits // 8 for kind, sizes in (("s", (8, 16, 32, 64)), ("u", (8, 16, 32, 64))) for bits in sizes
}
_BYTES |= {"f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}


def arrays(type: str) -> list[tuple[str, tuple[int, ...]]]:
    """The dtype and the shape of each array in a printed type."""
    found = re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", type)
    return [(dtype, tuple(int(size) for size in sizes.split(",") if size)) for dtype, sizes in found]


def type_bytes(type: str) -> int:
    """The bytes of a printed type."""
    return sum(_BYTES.get(dtype, 4) * prod(shape) for dtype, shape in arrays(type))
