"""`check` finds planted faults, by the name of the check, with a small input."""

import re

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from faulty import CELLS, DISTANT, FAULTS
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


@pytest.mark.parametrize("distant", variants(DISTANT, ["a chunk of 16 that is off by one"]))
def test_a_fault_that_needs_many_steps_is_found_where_xs_has_them(distant):
    cell = CELLS["GRU"]
    xs = jax.ShapeDtypeStruct((70, 3, 3), jnp.float32)
    check = distant.fault.check
    report = distant.fault.report(cell, cell.init(jax.random.key(0), 3), xs, only=check)
    assert report.failed == (check,)
    assert report[check].detail.startswith(f"{distant.fewest} steps, 1 row")
    assert report.setting.startswith("70 steps")


@pytest.mark.parametrize("distant", variants(DISTANT, ["a leak over 12 steps"]))
def test_steps_says_how_many_run(distant):
    """The argument, in place of the steps of xs: one step fewer shows nothing."""
    cell = CELLS["GRU"]
    params, xs = cell.init(jax.random.key(0), 3), jax.ShapeDtypeStruct((8, 3, 3), jnp.float32)
    for steps, failed in ((distant.fewest - 1, ()), (distant.fewest, (distant.fault.check,))):
        report = distant.fault.report(cell, params, xs, only=distant.fault.check, steps=steps)
        assert report.failed == failed


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
