"""What the tests of cells share: the cells that every property is checked for, and how to run them."""

from collections.abc import Callable
from typing import Any

import pytest

import rnnscan as rs
import zoo.case
from tiers import variants


# Few, because each is looked at in depth; test_battery.py has all cells. The stack has two loops, one of them a GRU's.
CELLS = {
    "lstm": rs.cells.LSTM(4),
    "gru_reset_before": rs.cells.GRU(4, reset_after=False),
    "stack": rs.stack(rs.cells.RNN(4), rs.cells.GRU(5)),
}


@pytest.fixture(params=variants(CELLS, ["stack"]))
def case(request: pytest.FixtureRequest) -> zoo.case.Case:
    """Every one of these cells in turn."""
    return zoo.case.Case(request.param)


@pytest.fixture
def case_of() -> Callable[[Any], zoo.case.Case]:
    """A case of one's own cell."""
    return zoo.case.Case


@pytest.fixture
def assert_trees_close() -> Callable[..., None]:
    """Compare pytrees: the same structure, shapes and dtypes, and values to the tolerance."""
    return zoo.case.assert_trees_close
