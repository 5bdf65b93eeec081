"""Let a tool see the scans of a function that it runs: those of nets, of Flax modules and of functions with `scan`.

`scan` hands its arguments to the observer of the context, if any. The observer runs the scan, as it is or changed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax


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


class _Observation(NamedTuple):
    """Who observes scans, and where these are in a longer one; None: they are whole."""

    observer: ScanObserver | None = None
    window: Window | None = None


# Part of jit's cache key: a function that a user jits is traced again for each observer.
_observation = jax.make_user_context(_Observation())


@contextmanager
def observing_scans(observer: ScanObserver | None) -> Iterator[None]:
    """A context in which an observer runs all scans, which are whole; with None, nobody does."""
    with _observation(_Observation(observer)):
        yield


def observed_scan(cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any]) -> tuple[Any, Any] | None:
    """The results of a scan that an observer runs; None without one."""
    observation: _Observation = _observation.value
    if observation.observer is None:
        return None
    with _observation(observation._replace(observer=None)):
        return observation.observer.scan(cell, params, carry, xs, **options)


def steps_are_observed() -> bool:
    """Whether an observer tells the steps of plain loops apart."""
    return isinstance(_observation.value.observer, StepObserver)


def observed_step(cell: Any, carry: Any, xs: Any, steps: int) -> Any:
    """The step of a loop that stops by a condition, as an observer of steps wants it; else the cell."""
    observer = _observation.value.observer
    return observer.step(cell, carry, xs, steps) if isinstance(observer, StepObserver) else cell


@contextmanager
def scanning_window(window: Window) -> Iterator[None]:
    """A context in which scans are windows of a longer one, for an observer of steps."""
    if steps_are_observed():
        with _observation(_observation.value._replace(window=window)):
            yield
    else:
        yield


def current_window() -> Window | None:
    """Where the scans of the context are in a longer one; None: they are whole."""
    window: Window | None = _observation.value.window
    return window


def observe_loop(function: str, step: Callable[..., Any], *arguments: Any) -> None:
    """Show a loop that stops by a condition to the observer of the context, if it takes note of them."""
    observer = _observation.value.observer
    if isinstance(observer, LoopObserver):
        with observing_scans(None):
            observer.loop(function, step, arguments)
