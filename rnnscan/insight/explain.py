"""explain(): what the fission engine finds in a cell, and what is kept, computed again, and made at once."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, overload

import jax

from rnnscan._messages import in_words
from rnnscan.engine.plan import Plan
from rnnscan.insight.describe import CarryFound, EquationFound, describe
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.base import Net
from rnnscan.nets.calls import part_names, run, takes_nets
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import fit
from rnnscan.protocols import Cell


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
            f"carry{place}: {leaf.type}, {f'loop {leaf.loop}, ' if leaf.loop else ''}{leaf.kind}; kept {leaf.kept}"
            for place, leaf in self.carry.items()
        ]
        title = f"{self.cell} under {self.memory}, for {self.length} steps"
        return [title, f"engine: {self.engine}{reason}", f"equations: {counts}", *carry]


@dataclass(frozen=True)
class NetExplanation:
    """What the fission engine finds in each scan of a net. Print it, or show it in a notebook.

    Attributes:
        net: the net, in words.
        parts: an `Explanation` for each scan, by its name: `"net_0"`, `"net_1.forward"`.
    """

    net: str
    parts: dict[str, Explanation]

    def __str__(self) -> str:
        """The explanations as text, one after the other."""
        return "\n\n".join(f"{name}: {part}" for name, part in self.parts.items())

    def __rich__(self) -> Any:
        """The explanations as tables of rich."""
        from rich.console import Group

        return Group(*(item for name, part in self.parts.items() for item in (f"{name}:", part)))

    def _repr_html_(self) -> str:
        from html import escape

        return "".join(f"<h4>{escape(name)}</h4>{part._repr_html_()}" for name, part in self.parts.items())


@overload
def explain(
    cell: Net, params: Any, xs: Any, carry: Any = None, *, memory: Memory = Memory(), **options: Any
) -> NetExplanation: ...


@overload
def explain(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    memory: Memory = Memory(),
    **options: Any,
) -> Explanation: ...


@takes_nets
def explain(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    memory: Memory = Memory(),
    **options: Any,
) -> Explanation | NetExplanation:
    """Say which work of a cell the fission engine runs once, for many steps at once, and step by step.

    Nothing is computed. Each operation of one step is

    - invariant: it depends on parameters and constants only, and runs once;
    - parallel: it depends on earlier steps only through completed loops, so it can run for many steps at once;
    - linear: it updates a carry by `c' = a * c + b`, elementwise;
    - recurrent: it updates a carry in any other way, and runs step by step.

    The step is the one that `scan` runs, with padding and resets around the cell. A net takes the place of a cell as
    `explain(net, params, xs, carry=None)`, and each of its scans is explained.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`, or a net.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: the initial carry, of the same.
        xs: the inputs, of the same, time-major: leaves `(T, N, ...)`; or None, with `length` among the options.
        memory: the memory choice to explain, or a budget (`Memory.fit`), which is planned first.
        options: other arguments of `scan`, or of the net: `seq_lengths`, `mask`, `reset`, `engine` and so on.

    Returns:
        An `Explanation`, or for a net a `NetExplanation`. Both show as text, as tables of rich, and as HTML.

    Raises:
        TypeError: if `memory` is no `Memory`, or `scan` refuses an argument's type.
        ValueError: if `scan` refuses an argument's value.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan import cells
        >>> cell = cells.LSTM(256)
        >>> params = cell.init(jax.random.key(0), input_size=128)
        >>> xs = jnp.ones((128, 32, 128))
        >>> explanation = rs.explain(cell, params, cell.initial_carry(xs[0]), xs, memory=rs.Memory(recompute="all"))
        >>> explanation.carry["[0]"].kept, explanation.carry["[1]"].kept
        ('as the output that it is', 'before every chunk of 16 steps; it follows linearly in between')
    """
    if not isinstance(memory, Memory | MemoryBudget):
        raise TypeError(
            f"explain: `memory` must be a Memory; got {memory!r}. memory=None is plain autodiff, which splits nothing."
        )
    if isinstance(memory, MemoryBudget):
        memory = fit(memory, run, cell, params, carry, xs, options)
    given = Arguments(run, cell, params, carry, xs, {**options, "memory": memory})
    found: list[Explanation] = []

    def look(*arrays: Any) -> None:
        found.extend(_explanation(ran.plan) for ran in given.plans(arrays))

    given.eval_shape(look)
    if not isinstance(cell, Net):
        return found[0]
    return NetExplanation(in_words(cell), dict(zip(part_names(cell), found, strict=True)))


def _explanation(plan: Plan) -> Explanation:
    """The explanation of a plan, while its arguments are traced."""
    call, found = plan.call, describe(plan)
    places = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(call.carry)]
    assert call.memory is not None
    return Explanation(
        cell=in_words(call.cell),
        memory=call.memory,
        length=call.length,
        engine=plan.route.engine,
        reason=plan.route.reason,
        equations=found.equations,
        carry=dict(zip(places, found.carry, strict=True)),
        y=found.y,
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
