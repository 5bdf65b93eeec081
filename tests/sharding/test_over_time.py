"""Linear recurrences over steps that are sharded over devices."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

import rnnscan as rs
from programs import quick_or_slow, report_of
from rnnscan import cells


# Both kinds of rows, in the other direction. A complex state takes twice as long to compile.
QUICK = ["MinGRU, reverse, rows"]
SLOW = [
    *("MinGRU", "MinGRU, reverse", "LRU, reverse, rows", "MinLSTM, rows", "LRU", "RGLRU", "SRU, rows", "S6", "GLA"),
    "RetNet, rows",
]


def found(quick):
    return report_of("over_time.py", QUICK if quick else SLOW)


@pytest.mark.parametrize(("case", "quick"), quick_or_slow(QUICK, SLOW))
def test_it_equals_a_scan_on_one_device_with_no_collective_in_a_loop(case, quick):
    result = found(quick)[case]
    assert result["difference"] < 2e-5
    collectives = result["collectives"]
    assert not any("loop" in kind for kind in collectives)
    # A and B, forward and backward. The A of a RetNet has no gradient.
    assert len(collectives["all-gather"]) == 2
    assert len(collectives["reduce-scatter"]) == (1 if case.startswith("RetNet") else 2)


def on_one_device(cell, axis="time", **options):
    mesh = jax.make_mesh((1,), ("time",), axis_types=(AxisType.Auto,))
    params, xs = cell.init(jax.random.key(0), 3), jnp.ones((4, 2, 3))
    run = lambda params, xs: rs.sharding.scan_over_time(  # noqa: E731
        cell, params, cell.initial_carry(xs[0]), xs, axis=axis, **options
    )
    specs = {"in_specs": (PartitionSpec(), PartitionSpec("time")), "out_specs": PartitionSpec("time")}
    return jax.shard_map(run, mesh=mesh, **specs)(params, xs)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (cells.LSTM(4), r"got `carry\[0\]` of LSTM.*Shard the batch or the hidden units"),
        (cells.ParaGRU(4), "does not follow by"),
        (rs.stack(cells.MinGRU(4), cells.MinGRU(4)), r"got `carry\[1\]\[0\]`.*depends on another leaf"),
    ],
    ids=["recurrent", "elementwise", "stack"],
)
def test_other_cells_say_that_time_cannot_be_sharded(cell, message):
    with pytest.raises(ValueError, match=message):
        on_one_device(cell)


def test_the_axis_must_be_one_of_shard_map():
    with pytest.raises(ValueError, match=r"an axis of jax\.shard_map around the call; got 'steps'"):
        on_one_device(cells.MinGRU(4), axis="steps")
