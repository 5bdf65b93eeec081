"""`check` finds planted faults, by the name of the check, with a small input."""

import re

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from faulty import CELLS, FAULTS
from tiers import variants


# Each fault in one cell for `make test`, and all in all for `make test-all`.
_EVERY = {f"{fault}-{cell}": (fault, cell) for fault in FAULTS for cell in CELLS}
_QUICK = [f"{fault}-{cell}" for fault, cell in zip(FAULTS, ["GRU", "LSTM"] * (len(FAULTS) // 2), strict=True)]


@pytest.mark.parametrize(("fault", "cell"), variants(_EVERY, _QUICK))
def test_a_planted_fault_is_found_by_name(fault, cell):
    planted = FAULTS[fault]
    xs = jax.ShapeDtypeStruct((8, 3, 3), jnp.float32)
    report = planted.report(CELLS[cell], CELLS[cell].init(jax.random.key(0), 3), xs, only=planted.check)
    assert report.failed == (planted.check,)
    detail = report[planted.check].detail
    assert "Error" not in detail, detail
    steps, rows = map(int, re.match(r"(\d+) steps?, (\d+) rows?[,:] ", detail).groups())
    assert steps <= 4
    assert rows == (2 if planted.check == "rows" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_check_before_the_right_one_fails(fault, cell):
    """All checks run. Others may see the same fault, but the first one names it."""
    planted = FAULTS[fault]
    xs = jax.ShapeDtypeStruct((8, 3, 3), jnp.float32)
    report = planted.report(CELLS[cell], CELLS[cell].init(jax.random.key(0), 3), xs)
    assert report.failed[0] == planted.check


@pytest.mark.parametrize("check", [fault.check for fault in FAULTS.values() if not fault.as_form])
def test_the_same_cell_without_the_fault_holds(check):
    cell = CELLS["LSTM"]
    xs = jax.ShapeDtypeStruct((8, 3, 3), jnp.float32)
    assert rs.check(cell, cell.init(jax.random.key(0), 3), None, xs, only=check).ok
