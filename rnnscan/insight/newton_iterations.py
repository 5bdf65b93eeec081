"""newton_iterations(): how many iterations the chunks of a scan take, and which of them run step by step."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from rnnscan import _checks as checks
from rnnscan._util.messages import in_words
from rnnscan._util.reports import Report, Table, titled
from rnnscan.engine.cache.program_cache import ClosesOverArraysError, run_compiled
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.run.fission import run_counting
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.base import Net
from rnnscan.nets.calls import run, scan_names, takes_nets
from rnnscan.newton import Newton
from rnnscan.planning.arguments import Arguments, is_array
from rnnscan.planning.choose import fit
from rnnscan.protocols import Cell


@dataclass(frozen=True)
class NewtonIterations(Report):
    """The work of Newton's method in a scan. Print it, or show it in a notebook.

    Attributes:
        cell: the cell, in words.
        iterations: for each loop, by the places of its carry leaves, the iterations of each chunk, in time order.
        fell_back: the same for whether the chunk did not converge, and ran step by step.
    """

    cell: str
    iterations: dict[str, np.ndarray]
    fell_back: dict[str, np.ndarray]

    @property
    def most(self) -> int:
        """The most iterations of a chunk."""
        return max((int(counts.max(initial=0)) for counts in self.iterations.values()), default=0)

    @property
    def chunks(self) -> int:
        """The number of chunks, over all loops."""
        return sum(counts.size for counts in self.iterations.values())

    @property
    def chunks_step_by_step(self) -> int:
        """The number of chunks that ran step by step, over all loops."""
        return sum(int(counts.sum()) for counts in self.fell_back.values())

    def _blocks(self) -> Iterator[str | Table]:
        lines = [self.cell]
        for place, counts in self.iterations.items():
            least, most = (int(counts.min()), int(counts.max())) if counts.size else (0, 0)
            span = f"{least} to {most}" if least < most else f"{most}"
            steps = int(self.fell_back[place].sum())
            lines.append(f"{place}: {span} iterations in {counts.size} chunks; {steps} of them ran step by step")
        yield "\n".join(lines)


@dataclass(frozen=True)
class NetNewtonIterations(Report):
    """The work of Newton's method in each scan of a net. Print it, or show it in a notebook.

    Attributes:
        net: the net, in words.
        scans: a `NewtonIterations` of each scan, by name: `"net_0"`, `"net_1.forward"`.
    """

    net: str
    scans: dict[str, NewtonIterations]

    @property
    def most(self) -> int:
        """The most iterations of a chunk."""
        return max((scan.most for scan in self.scans.values()), default=0)

    @property
    def chunks(self) -> int:
        """The number of chunks, over all scans."""
        return sum(scan.chunks for scan in self.scans.values())

    @property
    def chunks_step_by_step(self) -> int:
        """The number of chunks that ran step by step, over all scans."""
        return sum(scan.chunks_step_by_step for scan in self.scans.values())

    def _blocks(self) -> Iterator[str | Table]:
        for name, scan in self.scans.items():
            yield from titled(name, scan._blocks())


@takes_nets
def newton_iterations(
    cell: Cell, params: Any, carry: Any, xs: Any, *, parallel: Newton | None = Newton(), **options: Any
) -> NewtonIterations | NetNewtonIterations:
    """Count the iterations of Newton's method, by running the forward pass.

    For a net, call `newton_iterations(net, params, xs, carry=None)`. It runs outside of `jax.jit`.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`, or a net.
        params: its parameters.
        carry: the initial carry.
        xs: the inputs, time-major: leaves `(T, N, ...)`.
        parallel: how to solve the loops, as in `scan`.
        options: other arguments of `scan`, or of the net.

    Returns:
        A `NewtonIterations`; for a net, a `NetNewtonIterations`.

    Raises:
        TypeError, ValueError: as `scan` does; and if `parallel` is None.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.ParaGRU(4), jnp.ones((64, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> counts = rs.newton_iterations(cell, params, cell.initial_carry(xs[0]), xs)
        >>> counts.chunks, counts.chunks_step_by_step, counts.most <= 5
        (1, 0, True)
    """
    if parallel is None:
        raise ValueError("newton_iterations: `parallel` must be an rnnscan.Newton; got None. It says what to count.")
    checks.check_has_values("newton_iterations", params, carry, xs, options)
    memory = options.pop("memory", Memory())
    if isinstance(memory, MemoryBudget):  # The plans that are searched for it would be counted too.
        memory = fit(memory, run, cell, params, carry, xs, {**options, "parallel": parallel})
    options["memory"] = memory
    with_arrays = {name for name, value in options.items() if any(map(is_array, jax.tree.leaves(value)))}
    arrays = {"params": params, "carry": carry, "xs": xs, **{name: options.pop(name) for name in with_arrays}}
    counts = run_compiled(_count, cell, arrays, {**options, "parallel": parallel})
    reports = [_report(in_words(cell), of_scan) for of_scan in counts]
    if not isinstance(cell, Net):
        return reports[0]
    return NetNewtonIterations(in_words(cell), dict(zip(scan_names(cell), reports, strict=True)))


# Of each loop, by the places of its leaves: at the first step of a chunk its iterations, else 0; and whether the chunk
# did not converge. Ordered, because JAX sorts the keys of a dict.
_Counts: TypeAlias = OrderedDict[str, tuple[Any, Any]]


def _count(cell: Cell, *, params: Any, carry: Any, xs: Any, kept: bool = False, **options: Any) -> list[_Counts]:
    """Run the forward pass, and count in each scan. `kept`: the trace is cached for later calls."""
    arguments = Arguments(run, cell, params, carry, xs, options)

    def count(*arrays: Any) -> list[_Counts]:
        plans = [ran.plan for ran in arguments.plans(arrays)]
        if kept and any(plan.call.closes_over_arrays for plan in plans):
            raise ClosesOverArraysError
        return [_count_in(plan) for plan in plans]

    return count(*arguments.arrays) if kept else jax.jit(count)(*arguments.arrays)


def _count_in(plan: ExecutionPlan) -> _Counts:
    places = [f"carry{jax.tree_util.keystr(path)}" for path, _ in jax.tree.leaves_with_path(plan.call.carry)]
    names = [", ".join(places[index] for index in loop.carry) for loop in plan.newton_loops]
    counts = run_counting(plan)
    return OrderedDict(zip(names, zip(counts[::2], counts[1::2], strict=True), strict=True))


def _report(cell: str, counts: _Counts) -> NewtonIterations:
    arrays = {name: (np.asarray(iterations), np.asarray(fell_back)) for name, (iterations, fell_back) in counts.items()}
    return NewtonIterations(
        cell,
        {name: iterations[iterations > 0] for name, (iterations, _) in arrays.items()},
        {name: fell_back[iterations > 0] > 0 for name, (iterations, fell_back) in arrays.items()},
    )
