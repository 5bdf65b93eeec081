"""The figures of a compiled program, and their cache."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accelerators.hlo import Program, cycles, launches, loops_in_words
from benchmarks.accelerators.model import H200, modelled_seconds
from benchmarks.accelerators.target import Platform


class Operation(NamedTuple):
    """An instruction of a program: its cost over all trips, the JAX operation that it comes from, and its type."""

    cost: int
    origin: str
    type: str


@dataclass(frozen=True)
class Figures:
    """What is read off a compiled program.

    Attributes:
        cost: kernel launches on a GPU, estimated cycles on a TPU.
        loops: trips and cost of each loop, in words.
        temporary: peak temporary bytes in the device's main memory.
        compile_seconds: the processors' time to trace, lower and compile.
        modelled: the modelled seconds, the least and the most; None on a TPU.
        operations: the operations that cost most.
        host: peak temporary bytes in the host's memory.
    """

    cost: int
    loops: str
    temporary: int
    compile_seconds: float
    modelled: tuple[float, float] | None
    operations: tuple[Operation, ...]
    host: int = 0


def figures_of(text: str, temporary: int, compile_seconds: float, platform: Platform, *, host: int = 0) -> Figures:
    """Read figures off the text of a compiled program."""
    program = Program.parse(text)
    cost, loops = program.cost(launches if platform == "gpu" else cycles)
    modelled = modelled_seconds(program, H200) if platform == "gpu" else None
    operations = tuple(islice(_most_expensive(program, platform), 12))
    return Figures(cost, loops_in_words(loops), temporary, compile_seconds, modelled, operations, host)


def _most_expensive(program: Program, platform: Platform) -> Iterator[Operation]:
    """The operations, those that cost most first. Equal ones are added."""
    totals: dict[tuple[str, str], int] = {}
    for placed in program.placed():
        one = placed.instruction
        cost = placed.times * (launches(one) if platform == "gpu" else cycles(one))
        if cost:
            key = one.origin or one.kind, one.type.partition("{")[0].lstrip("(")
            totals[key] = totals.get(key, 0) + cost
    for (origin, type), cost in sorted(totals.items(), key=lambda item: -item[1]):
        yield Operation(cost, origin, type)


def read_figures(values: Mapping[str, Any]) -> Figures:
    """Figures from JSON."""
    operations = tuple(Operation(*one) for one in values["operations"])
    modelled = values["modelled"] and tuple(values["modelled"])
    return Figures(**{**values, "operations": operations, "modelled": modelled})


class Cache:
    """Figures by a digest of the program that XLA compiles, in a JSON file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    @staticmethod
    def digest(*parts: str) -> str:
        """The digest of a program and of all that decides how it is compiled."""
        return sha256("\0".join(parts).encode()).hexdigest()[:32]

    def get(self, digest: str) -> Figures | str | None:
        """The figures of a program, the error of its compilation, or None where it has not been compiled."""
        found = self._known.get(digest)
        if found is None or isinstance(found, str):
            return found
        return read_figures(found)

    def put(self, digest: str, figures: Figures | str) -> None:
        """Add the figures of a program, or the error of its compilation."""
        self._known[digest] = figures if isinstance(figures, str) else asdict(figures)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps(self._known, indent=1))
        unfinished.replace(self._path)
