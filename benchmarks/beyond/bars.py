"""The bars of the uses, and the figures reached."""

from collections.abc import Mapping

from benchmarks.bars import Bar, middle, train_ratio, worst
from benchmarks.beyond.accuracy import Accuracy
from benchmarks.beyond.uses import USES
from benchmarks.result import Result


TRAINING, TRAINING_MEDIAN, FORWARD, TEMPORARY, COMPILE = 1.10, 0.95, 1.10, 1.30, 2.5
SLACK = 2 * 2**20
LONG_TRAINING, LONG_TEMPORARY, DOUBLE, SINGLE = 0.5, 0.15, 1e-9, 1.0


def beyond_bars(results: Mapping[str, Result], accuracies: Mapping[str, Accuracy]) -> list[Bar]:
    """The bars of the measured uses, in order."""
    long = [name for name in results if USES[name].long]
    training = "training time / the faster of plain and checkpoint"
    bars = [
        worst(training, results, results, beside_the_faster, TRAINING),
        middle(training, results, results, beside_the_faster, TRAINING_MEDIAN),
        worst("forward time / plain", results, results, lambda result: result.forward_ratio("rnnscan"), FORWARD),
        worst(
            f'recompute="all": temporary / the larger of {TEMPORARY} of checkpoint\'s and 2 MiB more',
            results,
            results,
            temporary_of_allowed,
            1.0,
        ),
        worst("compile time / plain", results, results, lambda result: result.compile_ratio("rnnscan"), COMPILE),
        worst("chunkwise: training time / plain", results, long, train_ratio("rnnscan", "plain"), LONG_TRAINING),
        worst(
            "chunkwise: temporary / plain",
            results,
            long,
            lambda result: result.temporary_ratio("rnnscan"),
            LONG_TEMPORARY,
        ),
        *_accuracy_bars(accuracies),
    ]
    return [bar for bar in bars if bar is not None]


def beside_the_faster(result: Result) -> float:
    """The training time over that of the faster of plain and checkpoint."""
    return max(result.train_ratio("rnnscan", other) for other in ("plain", "checkpoint"))


def temporary_of_allowed(result: Result) -> float | None:
    """The temporary bytes with all recomputed, over those that the bar allows."""
    own, other = (result.runners[row].temporary for row in ("rnnscan-all", "checkpoint"))
    return None if own is None or other is None else own / max(TEMPORARY * other, other + SLACK)


def _accuracy_bars(accuracies: Mapping[str, Accuracy]) -> list[Bar]:
    if not accuracies:
        return []
    double = max(accuracies, key=lambda name: accuracies[name].double)
    single = max(accuracies, key=lambda name: accuracies[name].single)
    return [
        Bar("chunkwise: difference from the loop in float64", accuracies[double].double, DOUBLE, double),
        Bar("chunkwise: error in float32 / the loop's", accuracies[single].single, SINGLE, single),
    ]
