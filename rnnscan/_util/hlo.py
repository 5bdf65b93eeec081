"""Read the text of an optimised HLO module: its computations and their instructions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self


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
    def callees(self) -> list[str]:
        """The computations that it calls, those of a fusion and the branches of a conditional among them."""
        branches = re.search(r"\bbranch_computations=\{([^}]*)\}", self.rest)
        return [*_CALLEES.findall(self.rest), *re.findall(r"[\w.\-]+", branches[1] if branches else "")]


_CALLEES = re.compile(r"\b(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")


@dataclass(frozen=True)
class Program:
    """An optimised module.

    Attributes:
        computations: the instructions of each computation.
        entry: the computation that runs.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    @classmethod
    def parse(cls, text: str) -> Self:
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
        return cls({name: tuple(body) for name, body in computations.items()}, entry)

    def find(self, computation: str, name: str) -> Instruction | None:
        """An instruction by its name."""
        return self._by_name.get((computation, name))

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Instruction]:
        return {(name, one.name): one for name, body in self.computations.items() for one in body}

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
            for callee in one.callees:
                yield from self._numbers(callee)


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
