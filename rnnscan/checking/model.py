"""What is checked, as one function `(params, carry, xs) -> (carry, ys)` of time-major arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Model:
    """A cell, net, function or module.

    Attributes:
        title: the model, in words.
        kind: "cell", "net", "function" or "module".
        run: `(params, carry, xs, **options) -> (carry, ys)`. With carry=None it starts from its own carry.
        options: the options that `run` takes, by the names of `scan`. "carry": it takes and returns one.
        start: makes the initial carry of `(params, xs)`; None: it has none of its own.
        step: `(params, carry, x) -> (carry, y)` of a cell; None: one step is a run of length 1.
        backward: why it reads the future, in a sentence; None: it does not.
        cell: the cell or net as it was given.
        says_rows: whether a leaf of `xs` of this number of axes has rows; None where the model does not say.
        init: makes parameters for a number of input features; None: it does not make its own.
    """

    title: str
    kind: str
    run: Callable[..., tuple[Any, Any]]
    options: frozenset[str]
    start: Callable[[Any, Any], Any] | None = None
    step: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None
    backward: str | None = None
    cell: Any = None
    says_rows: Callable[[int], bool] | None = None
    init: Callable[[int], Any] | None = None

    def lacks(self, option: str) -> str | None:
        """Why a check that needs an option of `run` does not apply; None if the model takes it."""
        if option in self.options:
            return None
        needed = {
            "carry": f"a {self.kind} that takes and returns no carry",
            "reset": f"a {self.kind} that takes no `reset`",
            "seq_lengths": f"a {self.kind} that takes no `seq_lengths`",
        }
        return needed.get(option, f"a {self.kind} that takes no `{option}`")
