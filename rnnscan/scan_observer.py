"""Let a tool see the scans of a function that it runs: those of nets, of Flax modules and of functions with `scan`.

`scan` hands its arguments to the observer of the context, if any. The observer runs the scan, as it is or changed.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, runtime_checkable

from rnnscan._util.trace_context import trace_context, tracing_with


@runtime_checkable
class ScanObserver(Protocol):
    """Runs scans in place of `scan`."""

    def scan(self, cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        """Run a scan, by `rnnscan.scan` too, which no observer sees while this runs.

        Args:
            cell: the cell.
            params: its parameters.
            carry: the carry before the first step.
            xs: the inputs.
            options: all other arguments of `scan`, with their defaults.

        Returns:
            The carry after the last step, and the stacked outputs.
        """
        ...


@runtime_checkable
class StepObserver(ScanObserver, Protocol):
    """An observer that tells the steps of plain loops apart.

    Loops that stop by a condition run as one plain `lax.scan` for it, and windows of a sequence one after another.
    """

    def step(self, cell: Any, carry: Any, xs: Any, steps: int) -> Any:
        """The step of a loop that stops by a condition, to run in place of a cell.

        Args:
            cell: the step, `(params, carry, x) -> (carry, y)`.
            carry: the carry before the first step.
            xs: the inputs, or None.
            steps: the most steps.
        """
        ...


@runtime_checkable
class LoopObserver(Protocol):
    """Takes note of loops that are no scans: they stop by a condition, so that their values have no steps to stack."""

    def loop(self, function: str, step: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Take note of one.

        Args:
            function: the public function that runs it.
            step: one step, for a trace that computes nothing.
            arguments: its arguments.
        """
        ...


@runtime_checkable
class PlanObserver(Protocol):
    """Takes note of the plans of scans, except of scans inside a cell."""

    def plan(self, plan: Any, options: dict[str, Any], ys: Any) -> None:
        """Take note of one.

        Args:
            plan: the plan, with the arrays of its trace.
            options: the arguments of `scan` besides the parameters, the carry and the inputs, as they were given.
            ys: the stacked outputs.
        """
        ...


class Window(NamedTuple):
    """Where scans that are windows of a longer one are in it.

    Attributes:
        start: the first step of the window; of the first one, where a loop runs several.
        every: the steps from one window of the loop to the next; 0: no loop runs them.
        steps: the steps of the longer scan.
    """

    start: int
    every: int
    steps: int


def observing_scans(observer: Any) -> AbstractContextManager[None]:
    """A context in which an observer sees all scans, which are whole; with None, nobody does.

    A function that a user jits is traced again for each observer.
    """
    return tracing_with(observer=observer, window=None)


def observed_scan(cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any]) -> tuple[Any, Any] | None:
    """The results of a scan that an observer runs; None without one."""
    observer = trace_context().observer
    if not isinstance(observer, ScanObserver):
        return None
    with tracing_with(observer=None):
        return observer.scan(cell, params, carry, xs, **options)


def steps_are_observed() -> bool:
    """Whether an observer tells the steps of plain loops apart."""
    return isinstance(trace_context().observer, StepObserver)


def observed_step(cell: Any, carry: Any, xs: Any, steps: int) -> Any:
    """The step of a loop that stops by a condition, as an observer of steps wants it; else the cell."""
    observer = trace_context().observer
    return observer.step(cell, carry, xs, steps) if isinstance(observer, StepObserver) else cell


def scanning_window(window: Window) -> AbstractContextManager[None]:
    """A context in which scans are windows of a longer one, for an observer of steps."""
    return tracing_with(window=window) if steps_are_observed() else nullcontext()


def current_window() -> Window | None:
    """Where the scans of the context are in a longer one; None: they are whole."""
    window: Window | None = trace_context().window
    return window


def observe_loop(function: str, step: Callable[..., Any], *arguments: Any) -> None:
    """Show a loop that stops by a condition to the observer of the context, if it takes note of them."""
    observer = trace_context().observer
    if isinstance(observer, LoopObserver):
        with observing_scans(None):
            observer.loop(function, step, arguments)


def plans_are_observed() -> bool:
    """Whether an observer takes note of plans."""
    return isinstance(trace_context().observer, PlanObserver)


def inside_scan() -> AbstractContextManager[None]:
    """A context for the inside of a cell, whose scans have no plans to take note of."""
    return observing_scans(None) if plans_are_observed() else nullcontext()


def observe_plan(plan: Any, options: dict[str, Any], ys: Any) -> None:
    """Show a plan to the observer of the context, if it takes note of them."""
    observer = trace_context().observer
    if isinstance(observer, PlanObserver):
        observer.plan(plan, options, ys)
