"""explain(): what the fission engine finds in a cell, and what is kept, computed again, and made at once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan import checks
from rnnscan.engine.fission import why_not
from rnnscan.engine.kinds import CarryFound, EquationFound, find
from rnnscan.engine.step import flatten_step
from rnnscan.memory import Memory, MemoryBudget, check_names, kept_names
from rnnscan.messages import describe, in_words, is_count, leaves_with_places
from rnnscan.naming import look_over


@dataclass(frozen=True)
class Explanation:
    """What the fission engine finds in one step of a cell. Print it, or show it in a notebook.

    Attributes:
        cell: the cell, in words.
        memory: the memory choice.
        length: steps of the sequence that it is explained for.
        engine: the engine that `engine="auto"` picks for the cell.
        reason: why, if that is not the fission engine.
        equations: what was found of each operation of the step.
        carry: what was found of each leaf of the carry, by its place.
        y: what makes each leaf of y: the number of an operation, or "carry[0]", "x[0]" or "constant".
    """

    cell: str
    memory: Memory
    length: int
    engine: str
    reason: str
    equations: tuple[EquationFound, ...]
    carry: dict[str, CarryFound]
    y: tuple[int | str, ...]

    @property
    def kinds(self) -> dict[str, int]:
        """How many equations there are of each kind."""
        counted = Counter(equation.kind for equation in self.equations)
        return {kind: counted[kind] for kind in ("invariant", "parallel", "linear", "recurrent")}

    def __str__(self) -> str:
        """The explanation as text."""
        rows = [_HEADER, *(_row(equation) for equation in self.equations)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*self._summary(), "", *table])

    def __rich__(self) -> Any:
        """The explanation as a table of rich."""
        from rich.console import Group
        from rich.table import Table

        table = Table(*_HEADER)
        for equation in self.equations:
            table.add_row(*_row(equation), style=_STYLES[equation.kind])
        return Group(*self._summary(), table)

    def _repr_html_(self) -> str:
        from html import escape

        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        summary = "<br>".join(map(escape, self._summary()))
        body = "".join(row(_row(equation), "td") for equation in self.equations)
        return f"<p>{summary}</p><table>{row(_HEADER, 'th')}{body}</table>"

    def _summary(self) -> list[str]:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items() if count)
        reason = f", because {self.reason}" if self.reason else ""
        carry = [
            f"carry{place}: {leaf.type}, loop {leaf.loop}, {leaf.kind}; kept {leaf.kept}"
            for place, leaf in self.carry.items()
        ]
        title = f"{self.cell} under {self.memory}, for {self.length} steps"
        return [title, f"engine: {self.engine}{reason}", f"equations: {counts}", *carry]


def explain(
    cell: Callable[[Any, Any, Any], tuple[Any, Any]],
    params: Any,
    carry: Any,
    x: Any,
    *,
    memory: Memory = Memory(),
    length: int = 1024,
) -> Explanation:
    """What the fission engine finds in a cell: which of its work is invariant, parallel, linear and recurrent.

    Nothing is computed. Each operation of one step is

    - invariant: it depends on parameters and constants only, and runs once;
    - parallel: it waits for no step before its own but by way of loops that have run, so it can be done for many steps
      at once, and is where that pays;
    - linear: it carries a leaf on by `c' = a * c + b`, elementwise;
    - recurrent: it carries a leaf on in any other way, and runs step by step.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: a carry, of the same.
        x: one step's input, of the same.
        memory: the memory choice to explain.
        length: steps of the sequence, on which the chunk depends.

    Returns:
        An `Explanation`, which shows as text, as a table of rich, and as HTML.

    Raises:
        TypeError: if `memory` is no `Memory`, or the cell does not return a carry and a y.
        ValueError: if `memory` names what the cell does not.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan import cells
        >>> cell = cells.LSTM(256)
        >>> params = cell.init(jax.random.key(0), input_size=128)
        >>> x = jnp.ones((32, 128))
        >>> explanation = rs.explain(cell, params, cell.initial_carry(x), x, memory=rs.Memory(recompute="all"))
        >>> explanation.carry["[0]"].kept, explanation.carry["[1]"].kept
        ('as the output that it is', 'before every chunk of 16 steps; it follows linearly in between')
    """
    if not isinstance(memory, Memory):
        raise TypeError(
            f"explain: `memory` must be a Memory; got {memory!r}. memory=None is plain autodiff, which splits nothing."
        )
    if isinstance(memory, MemoryBudget):
        raise ValueError(
            f"explain: `memory` must be a choice; got a budget, {memory!r}. Make the choice for these shapes by "
            "rnnscan.plan."
        )
    if not is_count(length):
        raise ValueError(f"explain: `length` must be an int of at least 1; got {length!r}.")
    found: dict[str, Any] = {}

    def look(params: Any, carry: Any, x: Any) -> None:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            return checks.carry_and_output(cell(params, carry, x))

        overview = look_over(step, carry, x)
        checks.check_structure(carry, overview.carry)
        _check_shapes(carry, overview.carry, x)
        check_names(memory, overview.names)
        flat, _ = flatten_step(step, carry, x, kept=frozenset(overview.names.known), names=overview.names)
        kept = kept_names(memory, overview.names)
        # A name that cannot be taken out of the step matters only where it is kept.
        found["reason"] = why_not(flatten_step(step, carry, x, kept=kept, names=overview.names)[0], memory)
        step_found = find(flat, kept, length=length, chunk=memory.chunk)
        places = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(carry)]
        found["equations"], found["y"] = step_found.equations, step_found.y
        found["carry"] = dict(zip(places, step_found.carry, strict=True))

    jax.eval_shape(look, params, carry, x)
    return Explanation(
        cell=in_words(cell),
        memory=memory,
        length=length,
        engine="lax" if found["reason"] else "fission",
        reason=found["reason"],
        equations=found["equations"],
        carry=found["carry"],
        y=found["y"],
    )


def _check_shapes(carry: Any, new_carry: Any, x: Any) -> None:
    for (where, leaf), new_leaf in zip(leaves_with_places(carry, "carry"), jax.tree.leaves(new_carry), strict=True):
        if jnp.shape(leaf) != new_leaf.shape:
            raise ValueError(
                f"explain: the carry that the cell returns must have the shapes of the one it is given; got "
                f"{describe(new_leaf)} for {describe(leaf)} at {where}, with x = {jax.tree.map(describe, x)}. Give one "
                "step's input, such as xs[0]."
            )


_HEADER = ("operation", "result", "name", "kind", "forward", "again")
_STYLES = {"invariant": "dim", "parallel": "green", "linear": "cyan", "recurrent": "yellow"}


def _row(equation: EquationFound) -> tuple[str, ...]:
    return (
        equation.operation,
        equation.result,
        equation.name,
        equation.kind,
        equation.forward,
        equation.again,
    )
