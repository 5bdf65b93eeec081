"""The pictures of the documentation are what their scripts draw."""

import re
from itertools import pairwise

import matplotlib
import pytest

from pages import DOCS, ROOT, script
from svg_parts import content as step_content


BENCHMARK = script("make_benchmark_picture")
ENGINE = script("make_engine_pictures")
BENCHMARKS = {"time_and_memory": BENCHMARK.PICTURE, "time_and_memory_narrow": BENCHMARK.NARROW}
PICTURES = BENCHMARKS | {path.stem: path for path in sorted((DOCS / "pictures" / "engine").glob("*.svg"))}


@pytest.fixture
def as_text():
    """Text stays text, as in the committed pictures."""
    with matplotlib.rc_context({"svg.hashsalt": "rnnscan", "svg.fonttype": "none"}):
        yield


def drawn(name):
    if name in BENCHMARKS:
        return BENCHMARK.figure((DOCS / "benchmarks.md").read_text(), narrow=name.endswith("narrow"))
    return ENGINE.timeline_figure()


def content(svg):
    """Its words, and how many points and ticks it has: not where, which another matplotlib may choose otherwise."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg), svg.count("<use ")


@pytest.mark.usefixtures("as_text")
@pytest.mark.parametrize("name", [*BENCHMARKS, "timeline"])
def test_a_picture_is_what_its_script_draws(name, tmp_path):
    drawn(name).savefig(tmp_path / "again.svg", metadata={"Date": None})
    committed, again = (content(path.read_text()) for path in (PICTURES[name], tmp_path / "again.svg"))
    assert committed[0]
    assert again == committed


def test_pictures_of_steps_are_what_their_script_draws_and_all_are_shown():
    drawn = ENGINE.pictures()
    for name, picture in drawn.items():
        assert step_content(PICTURES[name].read_text()) == step_content(picture.text)
    assert step_content(PICTURES["walk"].read_text()) == step_content(ENGINE.walk())
    assert PICTURES.keys() - BENCHMARKS.keys() == {*drawn, "timeline", "walk"}
    text = (DOCS / "engine.md").read_text()
    assert set(re.findall(r"pictures/engine/(\w+)\.svg", text)) == {*drawn, "timeline", "walk"}


def test_every_picture_that_a_page_shows_is_there():
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = page.read_text()
        for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text) + re.findall(r'\bsrc(?:set)?="([^"]+)"', text):
            assert (page.parent / path).is_file(), f"{page.name}: {path}"


def test_the_benchmark_picture_takes_its_figures_from_the_tables():
    page = (DOCS / "benchmarks.md").read_text()
    points = BENCHMARK.points(page)
    assert set(points) == {"LSTM", "GRU"}
    for rows in points.values():
        assert rows["plain"] == (1, 1)
        assert set(rows) == set(BENCHMARK.LABELS)
    (row,) = re.findall(r"## LSTM: T=512.*?\| rnnscan \|([^\n]*)", page, re.DOTALL)
    cells = [cell.strip() for cell in row.split("|")]
    assert BENCHMARK.workloads(page)["lstm-narrow"]["rnnscan"]["training"] == cells[1]
    assert BENCHMARK.workloads(page)["lstm-narrow"]["rnnscan"]["temporary"] == cells[6]


@pytest.mark.parametrize("heights", [[1.0], [1.0, 1.0, 1.0], [0.0, 0.02, 0.5], [0.3, 0.1, 0.2]])
def test_labels_are_moved_apart_and_stay_in_order(heights):
    moved = BENCHMARK.spread(heights, 0.1)
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    gaps = [moved[after] - moved[before] for before, after in pairwise(order)]
    assert all(gap >= 0.1 - 1e-9 for gap in gaps)
    assert sum(moved) == pytest.approx(sum(heights))
