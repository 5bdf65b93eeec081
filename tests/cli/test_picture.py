from itertools import combinations
from pathlib import Path

import pytest

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan.insight import Tradeoff
from rnnscan.insight.picture import save_tradeoff_figure, tradeoff_figure


def choices(*points: tuple[int, float]) -> list[Tradeoff]:
    return [
        Tradeoff(f"choice number {number}", None, kept, None, relative_time, relative_time)
        for number, (kept, relative_time) in enumerate(points)
    ]


@pytest.mark.parametrize(
    "points",
    [
        [(1000, 1.0)],
        [(28_000, 1.0), (16_000, 0.9), (8_000, 1.05), (4_500, 1.2), (4_300, 1.5)],
        [(28_000, 1.0), (28_000, 1.0), (27_000, 1.01), (27_500, 0.99), (28_500, 1.0)],
        [(2**40, 1.0), (2**10, 9.0)],
    ],
)
def test_labels_are_in_the_picture_and_overlap_neither_each_other_nor_a_point(points: list[tuple[int, float]]) -> None:
    rows = choices(*points)
    figure = tradeoff_figure(rows, "a title")
    figure.canvas.draw()
    (axes,) = figure.axes

    boxes = {label.get_text(): label.get_window_extent() for label in axes.texts if label.get_text()}

    assert list(boxes) == ["lower left is better", *(row.choice for row in rows)]
    assert axes.get_title(loc="left") == "a title"
    assert axes.get_xscale() == "log"
    assert not any(one.overlaps(other) for one, other in combinations(boxes.values(), 2))
    frame = axes.get_window_extent()
    for box in boxes.values():
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert not any(box.contains(*axes.transData.transform(point)) for point in points)


def test_the_front_the_choice_and_the_budget_are_drawn() -> None:
    rows = [
        Tradeoff(str(number), None, 1, temporary, time, time)
        for number, (temporary, time) in enumerate([(4000, 1.0), (2000, 1.5), (3000, 1.6), (1000, 2.0)])
    ]
    (axes,) = tradeoff_figure(rows, "a title", axis="temporary", chosen="1", budget=2500).axes
    front, _, budget = axes.lines
    assert front.get_xydata().tolist() == [[1000, 2.0], [2000, 1.5], [4000, 1.0]]
    assert list(budget.get_xdata()) == [2500, 2500]
    points, ring = axes.collections
    assert points.get_offsets().tolist() == [[4000, 1.0], [2000, 1.5], [3000, 1.6], [1000, 2.0]]
    assert ring.get_offsets().tolist() == [[2000, 1.5]]
    assert "the budget, 2.44 KiB, in red" in axes.get_xlabel()
    with pytest.raises(ValueError, match=r"axis='temporary' needs temporary bytes"):
        tradeoff_figure(choices((1000, 1.0)), "a title", axis="temporary")


def test_points_are_where_the_rows_are() -> None:
    rows = choices((28_000, 1.0), (16_000, 0.9))
    (axes,) = tradeoff_figure(rows, "a title").axes
    assert axes.collections[0].get_offsets().tolist() == [[28_000, 1.0], [16_000, 0.9]]


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_ending_chooses_the_format(tmp_path: Path, ending: str, start: bytes) -> None:
    path = tmp_path / f"tradeoff.{ending}"
    save_tradeoff_figure(choices((1000, 1.0)), "a title", path)
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (2**20, "1 MiB"), (8_409_088, "8.02 MiB"), (2**45, "32768 GiB")],
)
def test_bytes_are_readable(count: int, text: str) -> None:
    assert readable_bytes(count) == text
