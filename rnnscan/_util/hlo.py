"""Read the text of an optimised HLO module: its instructions, its loops, and how often each instruction runs."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
        name: its name.
        type: the type of its result, as printed.
        kind: its opcode, such as "fusion".
        operands: the names of its operands.
        rest: the attributes, as printed.
        is_root: whether it is the result of its computation.
    """

    name: str
    type: str
    kind: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool

    def attribute(self, key: str) -> str | None:
        """The name that an attribute such as `body=%name` refers to."""
        found = re.search(rf"\b{key}=%?([\w.\-]+)", self.rest)
        return found and found[1]

    @property
    def origin(self) -> str:
        """The JAX operation that it comes from."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def estimated_cycles(self) -> int:
        """The TPU compiler's estimate; 0 where it gives none."""
        found = re.search(r'"estimated_cycles":"?(\d+)', self.rest)
        return int(found[1]) if found else 0


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
_CALLEES = re.compile(r"\b(?:to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")


def launches(instruction: Instruction) -> int:
    """The kernels that an instruction launches on a GPU, without those of the computations that it calls."""
    free = instruction.kind in FREE or instruction.kind in _CALLS or instruction.kind.endswith("-done")
    return int(not free)


def cycles(instruction: Instruction) -> int:
    """The cycles of an instruction, by the estimate of the TPU's compiler."""
    return instruction.estimated_cycles


Cost = Callable[[Instruction], int]


@dataclass(frozen=True)
class Program:
    """An optimised module.

    Attributes:
        computations: the instructions of each computation.
        entry: the computation that runs.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    @staticmethod
    def parse(text: str) -> "Program":
        """Read the text of `compiled.as_text()`."""
        computations: dict[str, list[Instruction]] = {}
        name, entry = None, ""
        for line in text.splitlines():
            head = _HEAD.match(line)
            if head:
                name = head[2]
                computations[name] = []
                entry = name if head[1] else entry
            elif line.startswith("}"):
                name = None
            elif name is not None and (instruction := _read(line)) is not None:
                computations[name].append(instruction)
        if not entry:
            raise ValueError("Program.parse: expected the text of an HLO module; it has no ENTRY computation.")
        return Program({name: tuple(body) for name, body in computations.items()}, entry)

    def cost(self, cost: Cost) -> tuple[int, tuple[Loop, ...]]:
        """The total over all trips, and the loops."""
        return self._cost(self.entry, cost)

    def placed(self) -> Iterator[Placed]:
        """All instructions that run, those of loops and calls among them."""
        yield from self._placed(self.entry, 1)

    def find(self, computation: str, name: str) -> Instruction | None:
        """An instruction by its name."""
        return self._by_name.get((computation, name))

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Instruction]:
        return {(name, one.name): one for name, body in self.computations.items() for one in body}

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
        return _CALLEES.findall(instruction.rest) if instruction.kind in _CALLS else []

    def trips(self, loop: Instruction) -> int:
        """How often a loop runs: what XLA says, else the largest constant of its condition.

        A condition without one asks a flag: it is a fallback, and does not run.
        """
        known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
        if known:
            return int(known[1])
        return max((int(one.operands[0]) for one in self._numbers(str(loop.attribute("condition")))), default=0)

    def _numbers(self, computation: str) -> Iterator[Instruction]:
        """The integer constants of a computation, and of those that it calls."""
        for one in self.computations.get(computation, ()):
            if one.kind == "constant" and one.type.startswith("s32[]"):
                yield one
            for callee in _CALLEES.findall(one.rest):
                yield from self._numbers(callee)


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


def _read(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(re.sub(r"/\*index=\d+\*/", "", line))
    if found is None:
        return None
    root, name, type, kind, after = found.groups()
    inside, rest = _to_closing(after)
    named = re.findall(r"%([\w.\-]+)", inside)
    return Instruction(name, type, kind, tuple(named or [inside]), rest, bool(root))


def _to_closing(text: str) -> tuple[str, str]:
    """The text before and after the parenthesis that closes."""
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[:position], text[position + 1 :]
    return text, ""
