"""The result of profile()."""

from collections.abc import Iterator
from dataclasses import dataclass

from rnnscan._util.reports import Report, Table


@dataclass(frozen=True)
class ScopeTime:
    """The time of the operations of a scope in one pass, for each run.

    Attributes:
        scope: the named scopes, such as `LSTM/gates`; empty for operations outside of all.
        direction: "forward" or "backward".
        step_by_step: the seconds in loops.
        at_once: the seconds of work for many steps at once: outside of loops, and in loops over chunks of steps.
        operations: how many operations ran.
    """

    scope: str
    direction: str
    step_by_step: float
    at_once: float
    operations: int

    @property
    def seconds(self) -> float:
        """The seconds in all."""
        return self.step_by_step + self.at_once


@dataclass(frozen=True)
class LoopTime:
    """The time of a loop, for each run, with the loops in it.

    Attributes:
        loop: its operation in the compiled program.
        scope: the named scopes that its operations share.
        direction: "forward" or "backward".
        iterations: how often its body runs; 0 if that is not known.
        seconds: the time of all iterations.
        between: the part of it in which no operation ran: the loop's own work.
    """

    loop: str
    scope: str
    direction: str
    iterations: int
    seconds: float
    between: float


@dataclass(frozen=True)
class ScanEstimate:
    """The engine's estimate of a scan, for each run (`rnnscan.explain`).

    Attributes:
        scope: the scope of its cell.
        direction: "forward" or "backward".
        part: a loop, such as "in loop 1", or "at once".
        seconds: the estimated time of all steps.
    """

    scope: str
    direction: str
    part: str
    seconds: float


@dataclass(frozen=True)
class Profile(Report):
    """Where the time of a function goes. Print it, or show it in a notebook.

    Attributes:
        function: the function, in words.
        device: the device that it ran on.
        scopes: the time of each scope and pass, the longest first.
        loops: the time of each loop, outer ones first.
        estimates: the estimates of the scans.
        seconds: the time of a run without the profiler, the mean.
        profiled_seconds: that of a run under the profiler.
        runs: how many runs the profiler saw. Times are for each.
    """

    function: str
    device: str
    scopes: tuple[ScopeTime, ...]
    loops: tuple[LoopTime, ...]
    estimates: tuple[ScanEstimate, ...]
    seconds: float
    profiled_seconds: float
    runs: int

    @property
    def total(self) -> float:
        """The seconds of all scopes: those in which operations ran, or a loop waited for its own."""
        return sum(scope.seconds for scope in self.scopes)

    def _blocks(self) -> Iterator[str | Table]:
        lines = [
            f"{self.function} on {self.device}: operations take {_milliseconds(self.total)} ms of a run of "
            f"{_milliseconds(self.seconds)} ms ({_milliseconds(self.profiled_seconds)} ms under the profiler, "
            f"{self.runs} runs)"
        ]
        for scope, direction in dict.fromkeys((one.scope, one.direction) for one in self.estimates):
            measured = self._measured(scope, direction)
            if measured:  # Else there was no such pass.
                parts = [one for one in self.estimates if (one.scope, one.direction) == (scope, direction)]
                words = ", ".join(f"{_milliseconds(one.seconds)} ms {one.part}" for one in parts)
                lines.append(f"{scope}, {direction}: estimated {words}; measured {_milliseconds(measured)} ms")
        yield "\n".join(lines)
        rows = [
            (
                one.scope or "outside of scans",
                one.direction,
                _milliseconds(one.step_by_step),
                _milliseconds(one.at_once),
                f"{100 * one.seconds / self.total:.1f} %" if self.total else "",
                f"{one.operations:,}",
            )
            for one in self.scopes
        ]
        yield Table(("scope", "pass", "ms step by step", "ms at once", "share", "operations"), [rows], 2)
        if self.loops:
            rows = [
                (
                    f"{one.loop} in {one.scope}" if one.scope else one.loop,
                    one.direction,
                    f"{one.iterations:,}" if one.iterations else "",
                    _milliseconds(one.seconds),
                    f"{1e6 * one.seconds / one.iterations:,.2f}" if one.iterations else "",
                    _milliseconds(one.between),
                )
                for one in self.loops
            ]
            yield Table(("loop", "pass", "iterations", "ms", "us an iteration", "ms between operations"), [rows], 2)

    def _measured(self, scope: str, direction: str) -> float:
        """The seconds of a cell in a pass."""
        times = (one for one in self.scopes if scope in one.scope.split("/") and one.direction == direction)
        return sum(one.seconds for one in times)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"
