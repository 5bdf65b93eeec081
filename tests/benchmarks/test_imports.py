"""The rows of `make bench-imports` run, and importing takes time."""

import pytest

from benchmarks.imports import ROWS, seconds_of


@pytest.mark.parametrize("row", ROWS)
def test_a_row_runs_and_takes_longer_than_python_alone(row):
    assert seconds_of(ROWS[row]) > seconds_of("pass") > 0
