"""The benchmark of the tools that look inside runs, on a small cell."""

from benchmarks import inside
from rnnscan import cells


def test_rows_of_a_small_cell(monkeypatch):
    monkeypatch.setattr(inside, "CELLS", {"GRU": (cells.GRU(4), (60, 2, 3))})
    finite, profile = inside.finite_rows(1), inside.profile_rows(1)
    assert [row[0] for row in finite] == ["GRU", "GRU, segments"]
    assert [row[0] for row in profile] == ["GRU"]
    assert all(float(milliseconds) > 0 and float(ratio) > 0 for _, milliseconds, ratio in [*finite, *profile])
