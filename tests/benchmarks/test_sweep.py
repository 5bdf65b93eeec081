"""The benchmark at random sizes: its draws, its measurements, and its page."""

from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.beyond.accuracy import measure_accuracy
from benchmarks.beyond.uses import USES
from benchmarks.sweep import measure
from benchmarks.sweep.case import NAMES, PLANS, Case, published_cases, size_ranges
from benchmarks.sweep.causes import same_plans
from benchmarks.sweep.checkout import Checkout
from benchmarks.sweep.draw import draw_case, draw_cases, is_bounded
from benchmarks.sweep.estimate import estimate
from benchmarks.sweep.measure import measure_case
from benchmarks.sweep.outcome import WHAT, Figure, Outcome
from benchmarks.sweep.record import Record
from benchmarks.sweep.table import make_page, percentile_90
from benchmarks.workloads import CELLS, WORKLOADS, Shape
from tiers import variants


ROOT = Path(__file__).parents[2]

SMALL = {"steps": 64, "rows": 4, "features": 8, "hidden": 64}
MACHINE = {"versions": "Python 3.11.7, rnnscan 0.3.0, jax 0.10.0", "date": "today"}
TINY = Case("crf", {"steps": 9, "rows": 2, "states": 3})


# A cell with a size of its own, a use with an option that is no size, and one without steps.
@pytest.mark.parametrize("name", variants(list(NAMES), ["lstm-stack", "bfloat16", "soft-dtw"]))
def test_drawn_sizes_are_within_their_ranges_and_bounds(name):
    case = draw_case(name, 0)
    assert case == draw_case(name, 0)
    ranges = size_ranges(name)
    assert case.sizes.keys() == ranges.keys()
    assert all(low <= case.sizes[size] <= high for size, (low, high) in ranges.items())
    assert is_bounded(case)


def test_a_seed_has_the_same_sizes_everywhere():
    assert draw_case("lstm", 0).sizes == {"steps": 512, "rows": 5, "features": 4, "hidden": 4}
    assert str(draw_case("crf", 0)) == "crf: steps 8, rows 16, states 192"
    assert draw_case("crf", 1) != draw_case("crf", 0) != draw_case("crf", 0, number=1)


def test_a_use_has_the_same_sizes_whichever_others_are_drawn(monkeypatch):
    monkeypatch.setattr("benchmarks.sweep.draw.NAMES", ("crf", "lstm"))
    (first,) = draw_cases(0, 1)
    several = list(draw_cases(0, 3))
    assert first == several[0]
    assert {case.name for case in several[:2]} == {"crf", "lstm"}
    assert several[2] == draw_case(several[2].name, 0, number=1)


def test_published_cases_are_the_workloads_and_uses_of_the_other_benchmarks():
    cases = published_cases()
    titles = {CELLS[case.name](Shape(*case.sizes.values())).title for case in cases if case.name in CELLS}
    assert titles == {workload.title for name, workload in WORKLOADS.items() if name != "lstm-16k"}
    sizes = {case.name: case.sizes for case in cases if case.name not in CELLS}
    assert sizes == {name: use.sizes for name, use in USES.items() if not use.long}


@pytest.mark.parametrize("name", ["lstm", "crf"])
def test_the_largest_sizes_are_out_of_bounds(name):
    assert not is_bounded(Case(name, {size: high for size, (_, high) in size_ranges(name).items()}))


def test_the_estimate_grows_with_the_steps():
    short, long = (estimate(replace(TINY, sizes=TINY.sizes | {"steps": steps})) for steps in (100, 200))
    assert long.seconds == pytest.approx(2 * short.seconds, rel=0.1)
    assert long.bytes == pytest.approx(2 * short.bytes, rel=0.1)


def test_plans_that_are_the_engines_own_are_no_others():
    # All of an N-body step runs step by step, and nothing of it is kept. An LSTM keeps its gates.
    bodies, lstm = Case("n-body", {"steps": 9, "bodies": 3}), Case("lstm", SMALL)
    assert same_plans(bodies, "training") == {"recompute all", "unsplit"}
    assert same_plans(bodies, "forward") == set(PLANS)
    assert same_plans(lstm, "training") == set()


def test_rounding_is_told_from_an_error():
    rows = TINY.rows(["checkpoint", "rnnscan"])
    assert measure_accuracy(rows).double < 1e-12
    halved = replace(rows["rnnscan"], loss=lambda *arguments: 0.5 * rows["rnnscan"].loss(*arguments))
    assert measure_accuracy(rows | {"rnnscan": halved}).single > measure.ALLOWED_ERROR


def test_a_figure_above_the_limit_is_measured_again_and_has_a_cause(monkeypatch):
    monkeypatch.setattr(measure, "LIMIT", 0.0)
    outcome = measure_case(TINY, rounds=1, seconds=0)
    assert not outcome.error
    assert outcome.figures.keys() == set(WHAT)
    assert {what for what, figure in outcome.figures.items() if figure.again is not None} == set(WHAT) - {"temporary"}
    for cause in outcome.causes.values():
        kind, _, plan = cause.partition(": ")
        assert kind == "fusion" or (kind == "estimate" and plan.rpartition(" ")[0] in PLANS)
    assert outcome.causes.keys() == {"training", "forward"}


def test_a_checkout_measures_in_a_process_of_its_own(tmp_path):
    checkout = Checkout(ROOT)
    outcome = checkout.run(measure_case, TINY, 1, 0)
    assert outcome.case == TINY
    assert not outcome.error
    checkout.close()
    with pytest.raises(BrokenProcessPool):
        Checkout(tmp_path).run(measure_case, TINY, 1, 0)


def test_the_page_shows_both_measurements_and_the_seed():
    figures = {"training": Figure(1.3, 1.2), "forward": Figure(1.2, 1.05), "temporary": Figure(0.5)}
    causes = {"training": "estimate: unsplit 0.80", "forward": "noise"}
    slow = Outcome(TINY, "plain", 2.0, figures, causes, 0.1)
    outcomes = {"abc": [slow, Outcome(TINY, error="no memory")], "def": [Outcome(TINY), slow]}
    page = make_page(outcomes, machine=MACHINE, command="python -m sweep", seed=1000)
    assert "- seed: 1000" in page
    assert page.splitlines()[2].startswith("> Measured with rnnscan 0.3.0 and jax 0.10.0 on today. Other programs took")
    assert "| crf | abc | training | 1.30 | 1.20 | estimate: unsplit 0.80 |" in page
    assert "| crf | abc | forward | 1.20 | 1.05 | noise |" in page
    assert "| training | abc | 1 | 1.20 | 1.20 | 1.20 | 1 | crf |" in page
    assert "1.20 (1.30) !" in page
    assert "1.05 (1.20) |" in page
    assert "- crf: steps 9, rows 2, states 3 (abc): no memory" in page


def test_the_page_has_no_times_of_a_machine_that_was_too_busy():
    figures = {what: Figure(0.5 + number) for number, what in enumerate(WHAT)}
    busy = Outcome(TINY, "plain", 2.0, figures, {"forward": "fusion"}, 0.8)
    page = make_page({"abc": [busy]}, machine=MACHINE, command="python -m sweep", seed=1000)
    assert "That is too much for reliable times in 1 of 1 measurements." in page.splitlines()[2]
    assert "| temporary | abc | 1 | 2.50 | 2.50 | 2.50 | 1 | crf |" in page
    assert "| use | temporary |" in page
    for gone in ("training |", "forward |", "compile |", "ms |", "fusion", "0.50", "1.50", "3.50"):
        assert gone not in page
    quiet = Outcome(TINY, "plain", 3.0, figures, {}, 0.0)
    page = make_page({"abc": [busy], "def": [quiet]}, machine=MACHINE, command="python -m sweep", seed=1000)
    assert "| crf | 3.0 |  | 0.50 |  | 1.50 ! | 2.50 ! | 2.50 ! |  | 3.50 ! |" in page


def test_a_run_goes_on_from_its_record(tmp_path):
    file = tmp_path / "record"
    outcome = Outcome(
        TINY, "plain", 2.0, {"training": Figure(1.3, 1.2), "forward": Figure(1.0)}, {"training": "fusion"}
    )
    Record(file).add("abc", outcome)
    assert Record(file).get("abc", TINY) == outcome
    assert Record(file).faster(TINY) == "plain"
    assert Record(file).get("def", TINY) is Record(None).get("abc", TINY) is None


def test_percentiles_lie_between_the_values():
    assert percentile_90(range(11)) == 9
    assert percentile_90([2.0]) == 2
