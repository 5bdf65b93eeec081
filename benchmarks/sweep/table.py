"""The tables of the sweep, and its page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median, quantiles

from benchmarks.machine import LOAD_UNKNOWN, with_condition
from benchmarks.others import TOO_MUCH
from benchmarks.sweep.case import Case
from benchmarks.sweep.causes import CAUSES
from benchmarks.sweep.draw import LEAST_SECONDS, MOST_BYTES, MOST_SECONDS
from benchmarks.sweep.outcome import LIMIT, TIMES, WHAT, Figure, Outcome
from benchmarks.table import markdown_table
from rnnscan._util.byte_sizes import readable_bytes


# By version, in the order in which the versions were given.
Outcomes = Mapping[str, Sequence[Outcome]]

SUMMARY_HEADINGS = ("figure", "version", "uses", "median", "90th percentile", "worst", f"above {LIMIT:.2f}", "where")
MISS_HEADINGS = ("use", "version", "figure", "first", "again", "cause")

INTRODUCTION = f"""\
# Benchmarks at random sizes

The uses of [Benchmarks beyond RNNs](benchmarks_beyond.md) and the cells of [Benchmarks](benchmarks.md), at sizes that
no choice was made for: 8 to 8,192 steps, 1 to 256 rows, and 1 to 1,024 for most other sizes, uniform in the logarithm,
half of them powers of two. A draw counts if plain autodiff is estimated to take {1000 * LEAST_SECONDS:g} to
{1000 * MOST_SECONDS:g} ms for a training step, and at most {readable_bytes(MOST_BYTES)}. The estimate counts the
operations of plain's jaxpr. So with one version of JAX a use has the same sizes at a seed on every machine, whichever
others are drawn.

Seeds 0 to 9 are for tuning. Seeds from 1000 on are for reports only, so that no choice is made for them either.

rnnscan stands beside `lax.scan` and `jax.checkpoint` on the body of the scan: the two. The faster one is that of a
training step in this run. `!` marks a figure that is above {LIMIT:.2f}. rnnscan gave plain's loss and gradients, to
rounding."""

FIGURES = {
    "training": "loss and gradients: rnnscan's time over that of the faster of the two",
    "forward": "the loss: rnnscan's time over that of `lax.scan`, whose forward pass `jax.checkpoint` leaves as it is",
    "temporary": "XLA's peak for the training step besides arguments and results, over that of the faster of the two",
    "compile": "the time to trace and compile the training step, over that of the faster of the two",
}

ABOUT_TIMES = f"""\
All rows of a version run in one process and take turns. Versions have a process each, and take turns by use. A time
above {LIMIT:.2f} is measured again, and the smaller measurement counts; the bytes of a program stay the same.

Causes of training and forward times:

{markdown_table(("cause", "meaning"), [(f"`{cause}`", text) for cause, text in CAUSES.items()])}

Other plans are `Memory(recompute="all")`, `engine="lax"` ("unsplit", which recomputes all) and `memory=None` ("save
all, unsplit", which may keep more than the memory choice allows). None of them is another plan where `rs.explain` shows
that it is the engine's own: `engine="lax"`, for example, where the engine keeps and batches nothing."""

WITHOUT_TIMES = "No time was reliable, so the page has none."


def summary_rows(outcomes: Outcomes) -> list[tuple[str, ...]]:
    """The cells of the summary, in the order of `SUMMARY_HEADINGS`."""
    return [row for what in WHAT for version in outcomes for row in _summary(outcomes[version], what, version)]


def _summary(outcomes: Sequence[Outcome], what: str, version: str) -> Iterator[tuple[str, ...]]:
    values = {one.case.name: one.figures[what].value for one in outcomes if what in one.figures}
    if values:
        worst = max(values, key=values.__getitem__)
        figures = (median(values.values()), percentile_90(values.values()), values[worst])
        above = sum(value > LIMIT for value in values.values())
        yield (what, version, f"{len(values)}", *(f"{figure:.2f}" for figure in figures), f"{above}", worst)


def percentile_90(values: Iterable[float]) -> float:
    """The 90th percentile, between the values."""
    values = list(values)
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def miss_rows(outcomes: Outcomes) -> list[tuple[str, ...]]:
    """The cells of the times that were measured again, in the order of `MISS_HEADINGS`."""
    return [
        (one.case.name, version, what, f"{one.figures[what].first:.2f}", f"{one.figures[what].again:.2f}", cause)
        for version, results in outcomes.items()
        for one in results
        for what, cause in one.causes.items()
    ]


def use_headings(outcomes: Outcomes) -> tuple[str, ...]:
    """The headings of `use_rows`."""
    several = len(outcomes) > 1
    what = shown(outcomes)
    milliseconds = ("ms",) if "training" in what else ()
    return ("use", *milliseconds, *(f"{one}, {version}" if several else one for one in what for version in outcomes))


def use_rows(outcomes: Outcomes) -> list[tuple[str, ...]]:
    """The cells of the uses: the time of the faster one of plain and checkpoint, and the figures of each version."""
    what = shown(outcomes)
    return [
        (
            together[0].case.name,
            *(_milliseconds(together) if "training" in what else ()),
            *(_cell(one.figures.get(figure)) for figure in what for one in together),
        )
        for together in zip(*outcomes.values(), strict=True)
    ]


def _milliseconds(together: Sequence[Outcome]) -> Iterator[str]:
    yield next((f"{one.milliseconds:.1f}" for one in together if "training" in one.figures), "")


def shown(outcomes: Outcomes) -> tuple[str, ...]:
    """The figures that some outcome has."""
    there = {what for results in outcomes.values() for one in results for what in one.figures}
    return tuple(what for what in WHAT if what in there)


def absent(outcomes: Outcomes) -> list[str]:
    """The uses without figures, each with the reason."""
    return [
        f"{one.case} ({version}): {one.error}" for version, results in outcomes.items() for one in results if one.error
    ]


def load_note(outcomes: Outcomes) -> str:
    """A note on the other programs that ran meanwhile."""
    shares = [one.others for results in outcomes.values() for one in results if one.others is not None]
    if not shares:
        return LOAD_UNKNOWN
    busy = sum(share > TOO_MUCH for share in shares)
    verdict = f" That is too much for reliable times in {busy} of {len(shares)} measurements." if busy else ""
    return (
        f"Other programs took {100 * median(shares):.0f} % of the processors in the median, and at most "
        f"{100 * max(shares):.0f} %.{verdict}"
    )


def reliable(outcome: Outcome) -> Outcome:
    """The outcome without its times, if other programs took too much for reliable ones."""
    if outcome.others is None or outcome.others <= TOO_MUCH:
        return outcome
    figures = {what: figure for what, figure in outcome.figures.items() if what not in TIMES}
    return replace(outcome, milliseconds=0.0, figures=figures, causes={})


def make_page(outcomes: Outcomes, *, machine: Mapping[str, str], command: str, seed: int) -> str:
    """The page in Markdown, without times that are not reliable."""
    load = load_note(outcomes)
    outcomes = {version: [reliable(one) for one in results] for version, results in outcomes.items()}
    has_times = not TIMES.isdisjoint(shown(outcomes))
    cases: list[Case] = [one.case for one in next(iter(outcomes.values()))]
    sizes = [(case.name, str(case).partition(": ")[2]) for case in cases]
    without = absent(outcomes)
    again = markdown_table(MISS_HEADINGS, miss_rows(outcomes)) if miss_rows(outcomes) else "None."
    parts = [
        with_condition(INTRODUCTION, machine, load),
        markdown_table(("figure", "meaning"), [(what, FIGURES[what]) for what in shown(outcomes)]),
        ABOUT_TIMES if has_times else WITHOUT_TIMES,
        "\n".join(f"- {heading}: {text}" for heading, text in {**machine, "seed": str(seed)}.items()),
        f"Made by `{command}`.",
        "## Summary",
        markdown_table(SUMMARY_HEADINGS, summary_rows(outcomes)),
        *(["## Times measured again", again] if has_times else []),
        "## Uses",
        markdown_table(("use", "sizes"), sizes),
        markdown_table(use_headings(outcomes), use_rows(outcomes)),
        *(["Without figures:", "\n".join(f"- {line}" for line in without)] if without else []),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _cell(figure: Figure | None) -> str:
    """The measurement that counts, and the other one in parentheses."""
    if figure is None:
        return ""
    other = "" if figure.again is None else f" ({max(figure.first, figure.again):.2f})"
    return f"{figure.value:.2f}{other}" + (" !" if figure.value > LIMIT else "")
