"""The picture of a trace: values over time and units, and the norms of cotangents over time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rnnscan._util.messages import listing, nearest
from rnnscan.inside.tracing.sites import matching, with_ends


try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ImportError(
        f"trace.draw: the extra 'plot' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[plot]" in the checkout of rnnscan.',
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from rnnscan.inside.tracing.result import Trace


def draw_trace(trace: "Trace", names: Sequence[str] | None, row: int, title: str) -> Figure:
    """Draw a trace: a heat map of each value, and below them the norms of the cotangents."""
    paths = _chosen(trace, names)
    ranks = {path: facts.rank for path, facts in trace.facts}
    for path in paths:
        if not np.size(trace[path]):
            raise ValueError(
                f"trace.draw: there must be a step and a row to draw; got `{path}` of shape {np.shape(trace[path])}."
            )
    maps = {path: _over_time(trace[path], ranks[path], row) for path in paths}
    cotangents = {path: trace.cotangents[path] for path in paths if path in trace.cotangents}
    heights = [1.4] * len(maps) + [2.2] * bool(cotangents)
    figure = Figure(figsize=(9, 0.6 + sum(heights)), dpi=120, layout="constrained")
    figure.suptitle(title or trace.subject, x=0.02, ha="left", fontsize=11)
    all_axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (path, values) in zip(all_axes, maps.items(), strict=False):
        _heat_map(figure, axes, path, values, trace.steps)
    if cotangents:
        _draw_norms(all_axes[-1], {path: _norms(value, ranks[path]) for path, value in cotangents.items()}, trace.steps)
    all_axes[-1].set_xlabel("step")
    return figure


def _chosen(trace: "Trace", names: Sequence[str] | None) -> list[str]:
    if names is None:
        paths = [*trace]
    else:
        paths = []
        for name in [names] if isinstance(names, str) else names:
            found = matching(name, trace)
            if not found:
                raise ValueError(
                    f"trace.draw: `names` must be names of the trace; got {name!r}, and it has {listing(trace)}."
                    f"{nearest(name, with_ends(trace))}"
                )
            paths += found
    return list(dict.fromkeys(paths))


def _over_time(value: Any, rank: int, row: int) -> Any:
    """A value as `(T, units)`: the first element of mapped axes, one row, and all units in one axis."""
    array = np.asarray(value).astype(np.float64)
    array = array.reshape(-1, *array.shape[array.ndim - rank :])[0]
    if array.ndim > 2:
        if not 0 <= row < array.shape[1]:
            raise ValueError(f"trace.draw: `row` must be from 0 to {array.shape[1] - 1}; got {row}.")
        array = array[:, row]
    return array.reshape(len(array), -1)


def _norms(value: Any, rank: int) -> Any:
    """The norm at each step, over all rows and units."""
    array = np.asarray(value).astype(np.float64)
    array = np.moveaxis(array, array.ndim - rank, 0)
    return np.sqrt(np.square(array.reshape(len(array), -1)).sum(axis=1))


def _heat_map(figure: Figure, axes: Axes, path: str, values: Any, steps: Sequence[int]) -> None:
    """Units upward, steps to the right. Zero is white; elements that are not finite are black."""
    finite = values[np.isfinite(values)]
    most = float(np.abs(finite).max()) if finite.size else 1.0
    image = axes.pcolormesh(
        _edges(steps[: len(values)]),
        np.arange(values.shape[1] + 1),
        values.T,
        cmap="RdBu_r",
        vmin=-(most or 1),
        vmax=most or 1,
    )
    axes.set_facecolor("black")
    axes.set_title(path, loc="left", fontsize=9, pad=3)
    axes.set_ylabel("unit", fontsize=8)
    axes.tick_params(labelsize=8)
    figure.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=7)


def _edges(steps: Sequence[int]) -> Any:
    """The edges between steps, half way; those that are not stored leave no gaps."""
    places = np.asarray(steps, float)
    if len(places) == 1:
        return np.array([places[0] - 0.5, places[0] + 0.5])
    middle = (places[1:] + places[:-1]) / 2
    return np.concatenate([[places[0] - (middle[0] - places[0])], middle, [places[-1] + (places[-1] - middle[-1])]])


def _draw_norms(axes: Axes, norms: dict[str, Any], steps: Sequence[int]) -> None:
    """The norms, on a logarithmic scale. Read them from right to left, as they are computed."""
    for path, norm in norms.items():
        axes.plot(
            steps[: len(norm)], np.where(norm > 0, norm, np.nan), label=path, marker=".", markersize=4, linewidth=1
        )
    axes.set_yscale("log")
    axes.set_title("norm of cotangents", loc="left", fontsize=9, pad=3)
    axes.grid(color="0.92")
    axes.tick_params(which="both", labelsize=8)
    axes.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4)
