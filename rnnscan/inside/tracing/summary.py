"""A table of the values of a trace."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.reports import Report, Table


if TYPE_CHECKING:
    from rnnscan.inside.tracing.result import Trace, ValueFacts


# A sigmoid is here within 0.01 of 0 or 1, where its slope is 1/25 of the steepest.
SATURATED = 4.6


@dataclass(frozen=True)
class ValueSummary:
    """A value over all of its steps and rows.

    Attributes:
        minimum: the least element; NaN if one is NaN.
        maximum: the greatest.
        mean: the mean.
        norm: the root of the sum of squares.
        saturated: the share of elements of a named value beyond 4.6, where a sigmoid is within 0.01 of 0 or 1; None for
            carries and y.
        cotangent_norm: the norm of the cotangent; None without.
        first_nonfinite: the first step to run at which an element is NaN or infinite, which in a reversed scan is the
            last of them; None if all are finite.
    """

    minimum: float
    maximum: float
    mean: float
    norm: float
    saturated: float | None
    cotangent_norm: float | None
    first_nonfinite: int | None


@dataclass(frozen=True)
class TraceSummary(Report):
    """The values of a trace as a table. Print it, or show it in a notebook.

    Attributes:
        subject: the cell or function, in words.
        values: a summary of each value, by path.
        untraced: the paths of values that cannot be traced, and why.
        steps: the number of steps.
    """

    subject: str
    values: dict[str, ValueSummary]
    untraced: dict[str, str]
    steps: int

    def _blocks(self) -> Iterator[str | Table]:
        lines = [f"{self.subject}: {len(self.values)} values at {self.steps} steps"]
        lines += [f"{path} is not traced: {reason}" for path, reason in self.untraced.items()]
        if any(value.saturated is not None for value in self.values.values()):
            lines.append(
                f"saturated: the share of elements beyond {SATURATED}, where a sigmoid is within 0.01 of 0 or 1"
            )
        yield "\n".join(lines)
        optional = {
            "saturated": [_percent(value.saturated) for value in self.values.values()],
            "cotangent norm": [_number(value.cotangent_norm) for value in self.values.values()],
        }
        optional = {title: column for title, column in optional.items() if any(column)}
        rows = [
            (
                path,
                *map(_number, (value.minimum, value.maximum, value.mean, value.norm)),
                *(column[number] for column in optional.values()),
                "none" if value.first_nonfinite is None else str(value.first_nonfinite),
            )
            for number, (path, value) in enumerate(self.values.items())
        ]
        header = ("value", "minimum", "maximum", "mean", "norm", *optional, "first not finite")
        yield Table(header, [rows], 1)


def summarize(trace: "Trace") -> TraceSummary:
    """The summary of a trace."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trace)):
        raise TypeError(
            "trace.summary: the values must be known; got those of a trace within jax.jit or another transformation. "
            "Return the trace from the transformed function, and call summary() on the result."
        )
    cotangents = trace.cotangents
    values = {path: _summary(trace[path], cotangents.get(path), facts, trace.steps) for path, facts in trace.facts}
    return TraceSummary(trace.subject, values, trace.untraced, len(trace.steps))


def _summary(value: Any, cotangent: Any, facts: "ValueFacts", steps: tuple[int, ...]) -> ValueSummary:
    array, has_gates = _as_numpy(value), facts.kind == "name"
    if not array.size:
        return ValueSummary(np.nan, np.nan, np.nan, 0.0, 0.0 if has_gates else None, None, None)
    time = array.ndim - facts.rank
    bad = np.flatnonzero(~np.isfinite(np.moveaxis(array, time, 0).reshape(array.shape[time], -1)).all(axis=1))
    with np.errstate(invalid="ignore", over="ignore"):
        return ValueSummary(
            minimum=float(array.min()),
            maximum=float(array.max()),
            mean=float(array.mean()),
            norm=float(np.sqrt(np.square(array).sum())),
            saturated=float((np.abs(array) > SATURATED).mean()) if has_gates else None,
            cotangent_norm=None if cotangent is None else float(np.sqrt(np.square(_as_numpy(cotangent)).sum())),
            first_nonfinite=steps[bad[-1 if facts.reverse else 0]] if bad.size else None,
        )


def _as_numpy(value: Any) -> Any:
    """A value in float64; the magnitude of a complex one."""
    return np.asarray(jnp.abs(value) if jnp.iscomplexobj(value) else value).astype(np.float64)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
