"""The colors of the kinds of work, and the lines of kept values, for pictures and terminals."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Color:
    """The color of a kind.

    Attributes:
        fill: of a box.
        line: of its border.
        terminal: the style of a row in a terminal, as rich writes it.
        meaning: the kind in the words of a legend.
    """

    fill: str
    line: str
    terminal: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class Line:
    """The line of an arrow.

    Attributes:
        color: its color.
        width: its width.
        style: "solid", "dashed" or "dotted".
        meaning: its meaning in the words of a legend.
    """

    color: str
    width: float
    style: str = "solid"
    meaning: str = ""


# From the work that runs once to the work that runs step by step. Source: the tones are ColorBrewer's.
KINDS = {
    "invariant": Color("#d9d9d9", "#737373", "dim", "invariant: runs once"),
    "parallel": Color("#a1d99b", "#238b45", "green", "parallel: runs for many steps at once"),
    "linear": Color("#9ecae1", "#2171b5", "cyan", "linear in the carry"),
    "elementwise": Color("#cbb7e0", "#6a51a3", "magenta", "elementwise in the carry"),
    "recurrent": Color("#fdae6b", "#d94801", "yellow", "recurrent: runs step by step"),
}
NEUTRAL = Color("#dbe4ee", "#52687f")
END = Color("#ffffff", "#737373", meaning="argument or result")

KEPT = "kept"
KEPT_AT_SOME = "kept at some steps"
OFFLOADED = "offloaded"
RECOMPUTED = "recomputed"
LINES = {
    KEPT: Line("#1f2f46", 2.4, "solid", "kept for the backward pass"),
    KEPT_AT_SOME: Line("#1f2f46", 2.4, "dashed", "kept at some steps"),
    OFFLOADED: Line("#1f2f46", 2.4, "dotted", "offloaded to host memory"),
    RECOMPUTED: Line("#8c96a3", 1.1, "solid", "recomputed"),
}
PLAIN = Line("#6b7685", 1.1)


def color_of(kind: str) -> Color:
    """The color of a kind of work; a neutral one for work of no known kind."""
    return KINDS.get(kind, NEUTRAL)


def line_of(keeping: str) -> Line:
    """The line of an arrow, by what happens to its value between the passes; a plain one if that is not known."""
    return LINES.get(keeping, PLAIN)


def most_kept(keepings: Iterable[str]) -> str:
    """Of the keys of `LINES`, the one that keeps most; "" if there is none."""
    present = set(keepings)
    return next((key for key in LINES if key in present), "")
