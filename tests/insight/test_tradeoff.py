"""measure_tradeoff takes what scan takes, and measures the training step of a scan or a net."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight import kept_bytes, measure_tradeoff
from tiers import variants
from zoo.case import Case


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


CELL, XS = cells.LSTM(6), jnp.ones((30, 2, 3))
PARAMS, CARRY = Case(CELL).arguments()[0], CELL.initial_carry(XS[0])
LENGTHS = jnp.array([30, 7])
CHOICES = {"plain": None, "kept": rs.Memory(), "segments": rs.Memory(segment=5)}


def named(params, carry, x):
    carry = jnp.tanh(rs.name(x @ params["kernel"] + carry @ params["recurrent_kernel"], "sum"))
    return carry, carry


def unnamed(params, carry, x):
    carry = jnp.tanh(x @ params["kernel"] + carry @ params["recurrent_kernel"])
    return carry, carry


@pytest.mark.parametrize("last_only", variants([False, True], [True]))
def test_the_rows_are_those_of_the_scan_with_its_options(last_only):
    options = {"last_only": last_only, "seq_lengths": LENGTHS}
    rows = measure_tradeoff(CELL, PARAMS, CARRY, XS, choices=CHOICES, rounds=2, **options)
    assert [(row.choice, row.memory) for row in rows] == list(CHOICES.items())
    assert rows[0].relative_time == 1
    for row in rows:

        def loss(params, carry, xs, memory=row.memory):
            carry, ys = rs.scan(CELL, params, carry, xs, memory=memory, seq_lengths=LENGTHS)
            return sum(jnp.sum((leaf - 2) ** 2) for leaf in jax.tree.leaves(carry if last_only else (carry, ys)))

        assert row.kept_bytes == kept_bytes(loss, PARAMS, CARRY, XS)
        assert row.seconds > 0
    assert rows[2].kept_bytes < rows[1].kept_bytes < rows[0].kept_bytes


@pytest.mark.parametrize("cell", [named, unnamed])
def test_the_choices_by_default_depend_on_the_names(cell):
    params = {"kernel": jnp.ones((3, 6)), "recurrent_kernel": jnp.ones((6, 6))}
    rows = measure_tradeoff(cell, params, jnp.zeros((2, 6)), XS[:4], rounds=1)
    kept = ["every name kept"] if cell is named else []
    assert [row.choice for row in rows] == ["plain autodiff", *kept, "recompute all", "segment sqrt"]


def test_a_net_takes_the_place_of_a_cell():
    net = rs.layer(CELL, reverse=True)
    choices = {"plain": None, "all": rs.Memory(recompute="all")}
    plain, recomputed = measure_tradeoff(net, PARAMS, XS, choices=choices, rounds=1)
    assert recomputed.kept_bytes < plain.kept_bytes / 2


def test_a_memory_choice_goes_into_choices():
    with pytest.raises(TypeError, match=r"^measure_tradeoff: .* `choices`; got `memory`"):
        measure_tradeoff(CELL, PARAMS, CARRY, XS, memory=rs.Memory())
    with pytest.raises(ValueError, match=r"'gates'"):
        measure_tradeoff(CELL, PARAMS, CARRY, XS, choices={"typo": rs.Memory(recompute=("gate",))})
