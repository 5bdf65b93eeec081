"""The arrays that stay in memory between the passes of a scan: a row for each value, which all reports read."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeAlias

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.ir.program import Atom


class Storage(Enum):
    """When a carry leaf is stored."""

    EVERY_STEP = "before every step"
    OUTPUT = "as an output"
    CHUNKS = "before every chunk"
    FIRST_STEP = "before the first step"


@dataclass(frozen=True)
class CarryLeaf:
    """What becomes of a carry leaf.

    Attributes:
        storage: when it is stored. Every leaf is stored before the first step.
        y: the y leaf that is the same value, for `Storage.OUTPUT`.
        is_read: whether the derivative reads it after the first step.
        is_restored: whether the backward pass reads its new value too, which is stored after the last step.
    """

    storage: Storage
    y: int | None
    is_read: bool
    is_restored: bool

    @property
    def is_recomputed(self) -> bool:
        """Whether a loop computes it again, for the steps between those before which it is stored."""
        return self.storage in (Storage.CHUNKS, Storage.FIRST_STEP)

    def in_words(self, chunk: int) -> str:
        """When it is stored, and why not at every step, for chunks of so many steps."""
        of_chunks = f" of {chunk} steps" if self.storage is Storage.CHUNKS else ""
        if not self.is_recomputed:
            return self.storage.value
        reason = "recomputed linearly in between" if self.is_read else "and not read"
        return f"{self.storage.value}{of_chunks}, {reason}"


Source: TypeAlias = Literal["constant", "initial carry", "carry", "y", "x", "name", "unnamed", "inner scan"]


@dataclass(frozen=True)
class KeptValue:
    """A value of a step that is stored at every step: one with a name, a part of the carry, or an expensive one.

    Attributes:
        source: its kind.
        of: its name, the position of the carry leaf, or the operation that makes it.
        is_offloaded: whether it lies in host memory between the passes.
    """

    source: Source
    of: Any
    is_offloaded: bool


@dataclass(frozen=True)
class Residual:
    """A row of the plan.

    Attributes:
        source: the kind of the value: an array that the step closes over, the carry before the first step, a stack of
            the carry before some or all steps, an output, an input, a value with a name, one without that is expensive
            to recompute, or a residual of a scan within the step.
        of: the array itself, the number of the leaf, the name, or the operation that makes the value.
        times: the number of steps that it is stored for; 1 for arrays that the step closes over and the initial carry.
        nbytes: the bytes for all these steps; a symbolic number for a symbolic batch.
    """

    source: Source
    of: Any
    times: int
    nbytes: Any


@dataclass(frozen=True)
class ResidualPlan:
    """The arrays that stay in memory between the passes: the constants, the inputs and these.

    Attributes:
        length: the steps of the scan.
        chunk: the steps of a chunk.
        carry: a row for each carry leaf.
        kept: the values that are stored at every step.
    """

    length: int
    chunk: int
    carry: tuple[CarryLeaf, ...]
    kept: tuple[KeptValue, ...]

    @cached_property
    def repeats(self) -> dict[int, int]:
        """Carry leaf -> y leaf that is the same value, of which one is stored."""
        return {index: leaf.y for index, leaf in enumerate(self.carry) if leaf.y is not None}

    @cached_property
    def repeated_ys(self) -> list[int]:
        """The y leaves that carry leaves repeat, in order."""
        return sorted({*self.repeats.values()})

    @cached_property
    def begins(self) -> frozenset[int]:
        """The carry leaves that a stack of carries begins with."""
        return frozenset(self.every_step if self.length else [])

    @cached_property
    def every_step(self) -> list[int]:
        """The carry leaves that are stored before every step."""
        return self._stored(Storage.EVERY_STEP)

    @cached_property
    def recomputed(self) -> list[int]:
        """The carry leaves that are not stored before every step, and recomputed in between."""
        return [index for index, leaf in enumerate(self.carry) if leaf.is_recomputed]

    @cached_property
    def chunk_starts(self) -> list[int]:
        """The carry leaves that are stored before each whole chunk."""
        return self._stored(Storage.CHUNKS)

    @cached_property
    def restored(self) -> list[int]:
        """The carry leaves whose new values the backward pass reads."""
        return [index for index, leaf in enumerate(self.carry) if leaf.is_restored]

    @cached_property
    def final(self) -> list[int]:
        """The carry leaves that are stored after the last step."""
        return [index for index in self.restored if index not in self.repeats]

    @cached_property
    def offloaded(self) -> frozenset[int]:
        """The positions in `kept` of the values that lie in host memory."""
        return frozenset(index for index, kept_value in enumerate(self.kept) if kept_value.is_offloaded)

    def _stored(self, storage: Storage) -> list[int]:
        return [index for index, leaf in enumerate(self.carry) if leaf.storage is storage]

    def rows(self, step: FlatStep) -> Iterator[Residual]:
        """All stored values of a step, except the arrays that it closes over."""
        yield from stacks("initial carry", step.carry, sorted({*range(len(step.carry))} - self.begins), 1)
        stored = [(self.every_step, self.length), (self.final, 1), (self.chunk_starts, self.length // self.chunk)]
        for leaves, times in stored:
            yield from stacks("carry", step.carry, leaves, times)
        yield from stacks("y", step.y, self.repeated_ys, self.length)
        yield from stacks("x", step.x, range(len(step.x)), self.length)
        for kept_value, value in zip(self.kept, step.kept, strict=True):
            yield _row(kept_value.source, kept_value.of, value, self.length)


def stacks(source: Source, leaves: Sequence[Atom], which: Iterable[int], times: int) -> Iterator[Residual]:
    """The rows of some leaves, each stored for so many steps."""
    return (_row(source, index, leaves[index], times) for index in which)


def _row(source: Source, of: Any, value: Atom, times: int) -> Residual:
    return Residual(source, of, times, times * prod(value.shape) * int(value.dtype.itemsize))
