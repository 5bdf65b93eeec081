"""explain(): show how the fission engine splits a cell, and which values are kept or recomputed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import jax

from rnnscan._util.high_types import HighTypeError
from rnnscan._util.messages import in_words, listing
from rnnscan._util.reports import Report, Table, titled
from rnnscan._util.step_wrappers import type_of_step
from rnnscan.engine.plan.execution_plan import ExecutionPlan, NewtonLoop
from rnnscan.engine.run.plain_scan import steps_of
from rnnscan.graph.draw.colors import KINDS
from rnnscan.graph.draw.diagram import Diagram
from rnnscan.graph.draw.picture import Direction, Format, Picture, PictureOptions
from rnnscan.graph.draw.simplify import simplified
from rnnscan.insight.describe import CarryInfo, EquationInfo, describe
from rnnscan.insight.describe_backward import backward_schedule
from rnnscan.insight.describe_kernel import describe_kernel
from rnnscan.insight.step_diagram import renamed, step_diagram
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.base import Net
from rnnscan.nets.calls import run, scan_names, takes_nets
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import fit
from rnnscan.planning.estimate import PartCost, estimate_parts, relative_time_of_iteration
from rnnscan.protocols import Cell
from rnnscan.random_choices import makes_random_choices


@dataclass(frozen=True)
class Explanation(Report):
    """How the fission engine splits one step of a cell. Print it, or show it in a notebook.

    Attributes:
        cell: the cell, in words.
        memory: the memory choice.
        length: the number of steps.
        engine: the engine that runs the cell.
        reason: why it is not the fission engine, or why that does not split the step.
        equations: the operations of the step.
        carry: the leaves of the carry, by path.
        y: the source of each leaf of y: the number of an operation, "carry[0]", "x[0]" or "constant".
        carry_names: a name for each leaf of the carry, if the cell has them.
        diagram: the step, as `draw` draws it.
        states: by the path of a carry leaf, whether it runs as a matrix state in chunkwise form, or why not.
        solved: by the paths of the carry leaves of a loop that Newton's method solves, the work of that.
        costs: the estimated cost of each loop and of the batched work, for each step.
        machine: the machine that the estimate is for.
        drops_nothing: whether the cell makes random choices, such as dropout, that are off, because the call has no
            `key`.
        kernel: of a small loop on a CPU, how it is one kernel, or what keeps it from that.
        chunk: the steps over which the fission engine batches parallel work, in training; 1 for another engine.
        loops: for each loop of the column "forward", in order, the numbers of the carry's loops that run in it as one.
    """

    cell: str
    memory: Memory
    length: int
    engine: str
    reason: str
    equations: tuple[EquationInfo, ...]
    carry: dict[str, CarryInfo]
    y: tuple[int | str, ...]
    carry_names: tuple[str, ...] = ()
    diagram: Diagram = field(default=Diagram((), ()), repr=False, compare=False)
    states: dict[str, str] = field(default_factory=dict)
    solved: dict[str, str] = field(default_factory=dict)
    costs: tuple[PartCost, ...] = ()
    machine: str = ""
    drops_nothing: bool = False
    kernel: str = ""
    chunk: int = 1
    loops: tuple[tuple[int, ...], ...] = ()

    def draw(
        self,
        format: Format = "svg",
        *,
        direction: Direction = "down",
        collapse: bool | int | None = None,
        details: bool = False,
        names: Sequence[str] | None = None,
        title: str = "",
    ) -> Picture:
        """Draw the step: its operations by kind, and thick arrows for the values that the plan keeps.

        Args:
            format: "svg", "mermaid" or "dot", as in `Graph.draw`.
            direction: "down" or "right".
            collapse: the number of enclosing `jax.named_scope` to tell apart, as in `Graph.draw`.
            details: whether to draw operations that only move or cast values, and parameters as boxes of their own.
                Without, parameters are written into the boxes that read them.
            names: a name for each leaf of the carry; None: those of the cell.
            title: the title.

        Returns:
            The picture, with `text` and `save(path)`. One in SVG shows itself in a notebook, with the extra `plot`.

        Raises:
            TypeError: if `collapse` is not a number.
            ValueError: if an option has none of its values, or if there is not one name for each leaf of the carry.

        Example:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> import rnnscan as rs
            >>> cell, xs = rs.cells.MinGRU(4), jnp.ones((16, 2, 3))
            >>> params = cell.init(jax.random.key(0), input_size=3)
            >>> picture = rs.explain(cell, params, cell.initial_carry(xs[0]), xs).draw("dot")
            >>> print(picture.text.splitlines()[0])
            digraph "graph" {
        """
        options = PictureOptions(format, direction, collapse, title).checked("explain.draw")
        if names is None:
            names = self.carry_names or [f"carry{place}" for place in self.carry]
        if isinstance(names, str) or len(names) != len(self.carry):
            raise ValueError(
                f"explain.draw: `names` must have a name for each of the {len(self.carry)} leaves of the carry, "
                f"{listing(self.carry)}; got {names!r}. Leave it out to write their places."
            )
        places = [f"carry{place}" for place in self.carry]
        diagram = renamed(self.diagram, dict(zip(places, names, strict=True)))
        return options.picture(diagram if details else simplified(diagram))

    @property
    def kinds(self) -> dict[str, int]:
        """The number of equations of each kind."""
        counted = Counter[str](equation.kind for equation in self.equations)
        return {kind: counted[kind] for kind in KINDS}

    def _estimates(self) -> Iterator[str]:
        """A line of text for each direction."""
        for direction in dict.fromkeys(part.direction for part in self.costs):
            texts = [f"{_duration(part.seconds)} {part.part}" for part in self.costs if part.direction == direction]
            yield f"estimated time of a step on {self.machine}, {direction}: about {', '.join(texts)}"

    def _loops_in_words(self) -> Iterator[str]:
        for number, loops in enumerate(self.loops, 1):
            *first, last = map(str, loops or ["no loop"])
            many = f"loops {', '.join(first)} and {last} of the carry, run as one"
            one = f"loop {last} of the carry" if loops else "work of no carry"
            yield f"loop {number} is {many if first else one}"

    def _legend(self) -> dict[str, str]:
        """What the kinds of work mean that are there."""
        return {kind: KINDS[kind].meaning for kind, count in self.kinds.items() if count}

    def _blocks(self) -> Iterator[str | Table]:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items() if count)
        reason = f"{', because' if self.engine == 'lax' else ';'} {self.reason}" if self.reason else ""
        lines = [f"{self.cell} under {self.memory!r}, for {self.length} steps", f"engine: {self.engine}{reason}"]
        if self.drops_nothing:
            lines.append(_DROPS_NOTHING)
        if self.equations:
            lines.append(f"equations: {counts}")
        for place, leaf in self.carry.items():
            loop = f"loop {leaf.loop}, " if leaf.loop else ""
            axes = f", its axes in the order {leaf.axes}" if leaf.axes else ""
            lines.append(f"carry{place}: {leaf.type}, {loop}{leaf.kind}{axes}; kept {leaf.kept}")
        if self.loops != tuple((number,) for number in range(1, len(self.loops) + 1)):
            lines.append(f"in the table and the estimate, forward: {'; '.join(self._loops_in_words())}")
        if self.kernel:
            lines.append(self.kernel)
        lines += [f"matrix state carry{place}: {text}" for place, text in self.states.items()]
        lines += [f"Newton's method for {place}: {text}" for place, text in self.solved.items()]
        lines += self._estimates()
        yield "\n".join(lines)
        rows = [(one.operation, one.result, one.name, one.kind, one.forward, one.backward) for one in self.equations]
        yield Table(
            ("operation", "result", "name", "kind", "forward", "backward"), [rows], 6, _STYLES, _FILLS, self._legend()
        )


@dataclass(frozen=True)
class NetExplanation(Report):
    """How the fission engine splits each scan of a net. Print it, or show it in a notebook.

    Attributes:
        net: the net, in words.
        scans: an `Explanation` of each scan, by name: `"net_0"`, `"net_1.forward"`.
        drops_nothing: whether the net drops outputs between its scans, and that is off, because the call has no `key`.
    """

    net: str
    scans: dict[str, Explanation]
    drops_nothing: bool = False

    def _blocks(self) -> Iterator[str | Table]:
        if self.drops_nothing:
            yield f"between nets: {_DROPS_NOTHING}"
        for name, scan in self.scans.items():
            yield from titled(name, scan._blocks())


@overload
def explain(
    cell: Net, params: Any, xs: Any, carry: Any = None, *, memory: Memory | MemoryBudget = Memory(), **options: Any
) -> NetExplanation: ...


@overload
def explain(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    memory: Memory | MemoryBudget = Memory(),
    **options: Any,
) -> Explanation: ...


@takes_nets
def explain(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    memory: Memory | MemoryBudget = Memory(),
    **options: Any,
) -> Explanation | NetExplanation:
    """Show which work of a cell runs once, batched over many steps, and step by step.

    Nothing is computed. Each operation of one step is

    - invariant: it depends on parameters and constants only, and runs once;
    - parallel: it depends on earlier steps only through completed loops, so it can be batched over many steps;
    - linear: it updates a carry by `c' = a * c + b`, elementwise;
    - elementwise: it updates carries element by element in any other way. It runs step by step, or with
      `parallel=Newton()` over many steps in parallel;
    - recurrent: it updates a carry in any other way, and runs step by step.

    The step includes padding and resets around the cell. A progress bar is left out. For a net, call
    `explain(net, params, xs, carry=None)`, which explains each of its scans.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`, or a net.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: the initial carry, of the same.
        xs: the inputs, of the same, time-major: leaves `(T, N, ...)`; or None, with `length` among the options.
        memory: the memory choice to explain, or a budget (`Memory.fit`), which is planned first.
        options: other arguments of `scan`, or of the net, such as `seq_lengths`, `mask`, `reset` and `engine`.

    Returns:
        An `Explanation`; for a net, a `NetExplanation`. Both show as text, with rich, and as HTML.

    Raises:
        TypeError: if `memory` is not a `Memory`, or `scan` rejects an argument's type.
        ValueError: if `scan` rejects an argument's value.

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
        ('as an output', 'before every chunk of 16 steps, recomputed linearly in between')
    """
    if not isinstance(memory, Memory | MemoryBudget):
        raise TypeError(
            f"explain: `memory` must be a Memory; got {memory!r}. memory=None is plain autodiff, without a split."
        )
    if isinstance(memory, MemoryBudget):
        memory = fit(memory, run, cell, params, carry, xs, options)
    arguments = Arguments(run, cell, params, carry, xs, {**options, "memory": memory})
    explanations: list[Explanation] = []

    def look(*arrays: Any) -> None:
        places = dict(zip(map(id, arrays), arguments.places, strict=True))
        explanations.extend(_explanation(ran.plan, places) for ran in arguments.plans(arrays))

    try:
        arguments.eval_shape(look)
    except HighTypeError as error:
        if isinstance(cell, Net):
            raise
        steps = steps_of(xs, options.get("length"))
        return Explanation(in_words(cell), memory, steps, "lax", error.reason, (), {}, ())
    if not isinstance(cell, Net):
        return explanations[0]
    scans = dict(zip(scan_names(cell), explanations, strict=True))
    return NetExplanation(in_words(cell), scans, cell.drops_between and options.get("key") is None)


def _explanation(plan: ExecutionPlan, arguments: Mapping[int, str]) -> Explanation:
    """Explain a plan, inside the trace of its arguments."""
    backward = backward_schedule(plan)
    call, description = plan.call, describe(plan, backward)
    places = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(call.carry)]
    assert call.memory is not None
    names = getattr(call.cell, "carry_names", ())
    return Explanation(
        cell=in_words(call.cell),
        memory=call.memory,
        length=call.length,
        engine=plan.route.engine,
        reason=plan.reason,
        equations=description.equations,
        carry=dict(zip(places, description.carry, strict=True)),
        y=description.y,
        carry_names=tuple(names) if len(names) == len(places) else (),
        diagram=step_diagram(plan, description, arguments),
        states={places[index]: text for index, text in description.states.items()},
        solved={
            ", ".join(f"carry{places[index]}" for index in loop.carry): _work_of(loop, plan)
            for loop in plan.newton_loops
        },
        costs=estimate_parts(plan, backward),
        machine=plan.choices.machine.name,
        drops_nothing=makes_random_choices(call.cell, call.params, call.carry, jax.tree.map(type_of_step, call.inputs)),
        kernel=describe_kernel(plan),
        chunk=plan.scan(call.length).chunk if plan.route.engine == "fission" else 1,
        loops=description.loops,
    )


def _work_of(loop: NewtonLoop, plan: ExecutionPlan) -> str:
    newton, times = loop.recurrence.newton, relative_time_of_iteration(plan, loop)
    assert newton is not None
    iterations = f"at most {newton.max_iterations} iterations, each about {times:.1f} times the loop's work"
    return f"{loop.chunk} steps at once, {iterations}"


def _duration(seconds: float) -> str:
    microseconds = 1e6 * seconds
    if microseconds < 10:
        return f"{max(microseconds, 0.1):.1f} us"
    return f"{microseconds:,.0f} us"


_DROPS_NOTHING = "random choices, such as dropout: off, because the call has no `key`"
_STYLES = {kind: color.terminal for kind, color in KINDS.items()}
_FILLS = {kind: color.fill for kind, color in KINDS.items()}
