"""NaN and inf in one step and row of the inputs: they reach what they reach in a plain scan, in no plan more.

`python -m fuzz --planted` does the same with random cells.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from fuzz.planted import MODES, assert_not_spread, lax_scan_drops_rules, results
from zoo.cases import CASES


STEPS, ROWS = 7, 3
# Where the value is planted.
STEP, ROW = 3, 1
VALUES = {"NaN": np.nan, "inf": np.inf}
OPTIONS = {
    "alone": {},
    "reset after": {"reset": np.arange(STEPS)[:, None] == np.where(np.arange(ROWS) == ROW, STEP + 2, -1)},
    "padded": {"seq_lengths": np.where(np.arange(ROWS) == ROW, STEP, STEPS)},
}
MEMORIES = {
    "default": rs.Memory(),
    "all": rs.Memory(recompute="all"),
    "chunks": rs.Memory(chunk=2),
    "sqrt": rs.Memory(segment="sqrt"),
    "None": None,
}
PLATFORMS = ("cpu", "gpu", "tpu")


def check(case, value, option, memory, platform, mode):
    params, carry, xs = case.arguments(length=STEPS, batch=ROWS)
    arguments = {"params": params, "carry": carry, "xs": xs.at[STEP, ROW].set(VALUES[value])}
    options = {name: jnp.asarray(array) for name, array in OPTIONS[option].items()}

    def outcome(**how):
        def run(params, carry, xs):
            return case.scan(params, carry, xs, **options, **how)

        return results(run, arguments, lambda *outputs: case.loss(outputs), mode=mode, groups=[*arguments])

    expected = outcome(engine="lax", memory=None)
    with rs.tuned_for(platform):
        actual = outcome(memory=MEMORIES[memory])
    assert_not_spread(actual, expected, f"{value}, {option}, {memory}, {platform}, {mode}", tolerance=1e-9)


# Cells whose states are no matrices hold it on a CPU.
FEW = {
    "LSTM": ("NaN", "reset after", "default", "cpu", "reverse"),
    "MinGRU": ("inf", "alone", "sqrt", "cpu", "forward"),
    "LRU": ("NaN", "padded", "all", "cpu", "forward over reverse"),
}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.usefixtures("x64")
def test_a_value_that_is_not_finite_goes_no_further_than_in_a_plain_scan(name):
    check(CASES[name], *FEW[name])


def choices(name):
    """Each value and option with another memory choice, platform and derivative for each cell."""
    place = [*CASES].index(name)
    # Where `lax.scan` drops the rule of the relu in an IndRNN, a loop in Python tells that its NaN is wrong.
    modes = [*MODES[:2], "reverse"] if name == "IndRNN" and lax_scan_drops_rules() else MODES
    for number, (value, option) in enumerate((value, option) for value in VALUES for option in OPTIONS):
        memory = [*MEMORIES][(place + number) % len(MEMORIES)]
        yield value, option, memory, PLATFORMS[(place + number // 2) % 3], modes[(place // 3 + number) % 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("x64")
def test_a_value_that_is_not_finite_goes_nowhere_else_under_other_choices(name):
    differing = []
    for choice in choices(name):
        try:
            check(CASES[name], *choice)
        except AssertionError as error:
            differing.append(str(error))
    assert not differing, "\n\n".join(differing)
    jax.clear_caches()
