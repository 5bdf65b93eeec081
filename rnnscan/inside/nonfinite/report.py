"""The report of `first_nonfinite`: one sentence, and its parts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rnnscan._util.reports import Report, Table


Direction = Literal["forward", "backward", "tangent"]


@dataclass(frozen=True)
class Nonfinite(Report):
    """The first value that is not finite and that reaches the results. Its text is one sentence.

    Attributes:
        step: the step, an index into `xs`; None: it is in no loop.
        row: the row of the batch; None: the value has no axis of rows.
        name: the name that the value has or flows into next; else the place of the result of the step, such as
            `carry[0]` or `y`, or that of the function which is not finite; None: none is known.
        direction: "forward" for values; "backward" for cotangents, and for factors that only they read; "tangent" for
            tangents.
        value: the value: NaN or an infinity.
        index: its place in the result of the operation, or in the argument.
        primitive: the operation; None: an argument holds the value.
        operands: one number of each operand: the element at the same place, or else that of the largest magnitude.
        place: the file, line and function of the user; empty: unknown.
        origin: the argument, carry or constant that the largest operand came from, or that holds the value; None:
            unknown.
        magnitude: the largest magnitude in it.
    """

    step: int | None
    row: int | None
    name: str | None
    direction: Direction
    value: float | complex
    index: tuple[int, ...]
    primitive: str | None
    operands: tuple[float | complex | bool, ...]
    place: str
    origin: str | None
    magnitude: float | None

    def _blocks(self) -> Iterator[str | Table]:
        yield self._sentence()

    def _sentence(self) -> str:
        where = [] if self.step is None else [f"step {self.step}"]
        where += [] if self.row is None else [f"row {self.row}"]
        if self.primitive is None:
            where = [*where, self.direction]
            return f"{', '.join(where)}: {self.origin} holds {_number(self.value)} at {_index(self.index)}"
        where += [] if self.name is None else [f"`{self.name}`"]
        operands = ", ".join(map(_number, self.operands))
        element = "" if self.row is not None or not self.index else f" at {_index(self.index)}"
        text = f"{', '.join([*where, self.direction])}: {_number(self.value)} = {self.primitive}({operands}){element}"
        if self.origin is not None and self.magnitude is not None:
            text += f"; its operand came from {self.origin}, {_number(self.magnitude)}"
        return f"{text} ({self.place})" if self.place else text


def _number(value: float | complex | bool) -> str:
    return str(value) if isinstance(value, bool) else f"{value:.4g}"


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"
