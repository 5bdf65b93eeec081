"""The targets and the figures reached."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.result import Result


LSTMS = ("lstm-small", "lstm-narrow", "lstm-large")
GRUS = ("gru-small", "gru-narrow", "gru-large")

Results = Mapping[str, Result]
Figure = Callable[[Result], float | None]


@dataclass(frozen=True)
class Bar:
    """A target: a figure that should not exceed its limit.

    Attributes:
        text: the figure in words.
        figure: the figure reached.
        limit: the limit.
        where: the workloads.
    """

    text: str
    figure: float
    limit: float
    where: str

    @property
    def met(self) -> bool:
        """Whether the figure is within the limit."""
        return self.figure <= self.limit


def bars(results: Results) -> list[Bar]:
    """The bars of the measured workloads, in order."""
    found = [*_layer_bars(results), *_choice_bars(results), *_workload_bars(results), *_compile_bars(results)]
    return [bar for bar in found if bar is not None]


def _layer_bars(results: Results) -> Iterable[Bar | None]:
    for kind, workloads in (("LSTM", LSTMS), ("GRU", GRUS)):
        for row in ("rnnscan", "rnnscan-all"):
            named = f"{kind}, {row}"
            yield middle(f"{named}: training time / plain", results, workloads, train_ratio(row, "plain"), 0.70)
            yield middle(f"{named}: temporary / plain", results, workloads, _temporary(row, "plain"), 0.35)
            yield middle(f"{named}: training time / torch", results, workloads, _beside_torch(row), 1.10)


def _choice_bars(results: Results) -> Iterable[Bar | None]:
    text = "rnnscan-all: training time / rnnscan"
    yield worst(text, results, LSTMS + GRUS, train_ratio("rnnscan-all", "rnnscan"), 1.05)
    yield worst("LSTM, rnnscan-all: kept / plain", results, LSTMS, _kept("rnnscan-all", "plain"), 0.13)
    text = "LSTM, rnnscan-all: kept / plain, both without parameters"
    yield worst(text, results, LSTMS, _kept_without_params("rnnscan-all", "plain"), 0.13)


def _workload_bars(results: Results) -> Iterable[Bar | None]:
    text = "rnnscan-all: training time / the faster of plain and checkpoint"
    yield worst(text, results, results, _beside_the_faster, 1.05)
    text = "rnnscan-all: temporary / checkpoint"
    yield worst(text, results, results, _temporary("rnnscan-all", "checkpoint"), 1.30)
    for row in ("rnnscan", "rnnscan-all"):
        yield worst(f"attention, {row}: kept / plain", results, ["attention"], _kept(row, "plain"), 0.06)
        yield worst(f"attention, {row}: training time / plain", results, ["attention"], train_ratio(row, "plain"), 0.55)
    for row in ("rnnscan", "rnnscan-all"):
        yield worst(f"minGRU, {row}: training time / plain", results, ["min-gru"], train_ratio(row, "plain"), 0.60)
        yield worst(f"minGRU, {row}: temporary / plain", results, ["min-gru"], _temporary(row, "plain"), 0.35)


def _compile_bars(results: Results) -> Iterable[Bar | None]:
    for row in ("rnnscan", "rnnscan-all"):
        text = f"one layer, {row}: compile time / plain"
        yield worst(text, results, LSTMS + GRUS, _compile(row, "plain"), 2.0)


def train_ratio(row: str, other: str) -> Figure:
    """The ratio of two rows' training steps, where both are there."""
    return lambda result: result.train_ratio(row, other) if {row, other} <= result.train.keys() else None


def _kept(row: str, other: str) -> Figure:
    return lambda result: result.kept_ratio(row, other) if {row, other} <= result.runners.keys() else None


def _kept_without_params(row: str, other: str) -> Figure:
    return lambda result: (
        result.kept_without_params_ratio(row, other) if {row, other} <= result.runners.keys() else None
    )


def _temporary(row: str, other: str) -> Figure:
    return lambda result: result.temporary_ratio(row, other) if {row, other} <= result.runners.keys() else None


def _compile(row: str, other: str) -> Figure:
    return lambda result: result.compile_ratio(row, other) if {row, other} <= result.runners.keys() else None


def _beside_torch(row: str) -> Figure:
    """The worse of two ratios, because one other program makes most of torch's rounds much slower."""

    def figure(result: Result) -> float | None:
        if result.busy or not {row, "torch"} <= result.train.keys():
            return None
        return max(result.train_ratio(row, "torch"), result.fastest_train_ratio(row, "torch"))

    return figure


def _beside_the_faster(result: Result) -> float | None:
    beside = [train_ratio("rnnscan-all", other)(result) for other in ("plain", "checkpoint")]
    return None if None in beside else max(figure for figure in beside if figure is not None)


def _figures(results: Results, workloads: Iterable[str], figure: Figure) -> dict[str, float]:
    figures = {workload: figure(results[workload]) for workload in workloads if workload in results}
    return {workload: value for workload, value in figures.items() if value is not None}


def middle(text: str, results: Results, workloads: Iterable[str], figure: Figure, limit: float) -> Bar | None:
    """The bar of a median over workloads."""
    figures = _figures(results, workloads, figure)
    if not figures:
        return None
    each = ", ".join(f"{workload} {value:.3f}" for workload, value in figures.items())
    if len(figures) > 12:
        return Bar(text, median(figures.values()), limit, f"median of {len(figures)}")
    return Bar(text, median(figures.values()), limit, f"median of {each}" if len(figures) > 1 else each)


def worst(text: str, results: Results, workloads: Iterable[str], figure: Figure, limit: float) -> Bar | None:
    """The bar for every workload."""
    figures = _figures(results, workloads, figure)
    if not figures:
        return None
    above = [f"{workload} {value:.3f}" for workload, value in figures.items() if value > limit]
    worst = max(figures, key=lambda workload: figures[workload])
    where = worst if len(figures) == 1 else f"worst of {len(figures)}: {worst}"
    return Bar(text, figures[worst], limit, f"{where}; above it: {', '.join(above)}" if len(above) > 1 else where)
