"""Diagram: boxes and arrows in words, before they have places. Every format is written from one."""

from dataclasses import dataclass
from typing import Literal, TypeAlias


Role: TypeAlias = Literal["argument", "operation", "group", "result"]


@dataclass(frozen=True)
class Box:
    """A box: an argument, an operation, several operations, or a result.

    Attributes:
        id: its identifier: letters and digits.
        text: its text.
        notes: lines of small text below it.
        tooltip: what a reader sees who points at it.
        role: what it stands for.
        kind: the kind of work, or "" if it is not known.
        stands_out: whether it is drawn with a strong border, as matrix products are.
        only_moves: whether it only moves, labels or casts values.
        scope: the named scopes around it, the outermost first.
        members: the ids of the boxes that it stands for; () if it stands for itself.
        name: the full name of an argument, of which the text may be a part.
    """

    id: str
    text: str
    notes: tuple[str, ...] = ()
    tooltip: str = ""
    role: Role = "operation"
    kind: str = ""
    stands_out: bool = False
    only_moves: bool = False
    scope: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    name: str = ""

    @property
    def is_end(self) -> bool:
        """Whether it stands for arguments or results."""
        return self.role in ("argument", "result")


@dataclass(frozen=True)
class Arrow:
    """An arrow: a value from its box to one that reads it.

    Attributes:
        source: the id of the box that the value comes from.
        target: the id of a box that reads it, or returns it.
        value: the value. Arrows of one value share their way.
        tooltip: what a reader sees who points at it.
        keeping: what happens to the value between the passes, a key of `colors.LINES`; "" if that is not known.
    """

    source: str
    target: str
    value: str
    tooltip: str = ""
    keeping: str = ""


@dataclass(frozen=True)
class Diagram:
    """Boxes and arrows.

    Attributes:
        boxes: the boxes, in an order in which every arrow goes forward: arguments, operations, results.
        arrows: the arrows. No two have the same source, target and value.
    """

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
