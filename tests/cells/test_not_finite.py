"""NaN, inf and an overflow in the arguments of a cell: they reach what they reach in a plain scan, in no plan more.

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
VALUES = {"NaN": np.nan, "inf": np.inf, "overflow": 1e200}
OPTIONS = ("alone", "reset after", "padded")
MEMORIES = {
    "default": rs.Memory(),
    "all": rs.Memory(recompute="all"),
    "chunks": rs.Memory(chunk=2),
    "sqrt": rs.Memory(segment="sqrt"),
    "None": None,
}
PLATFORMS = ("cpu", "gpu", "tpu")


def options_of(option, step, row):
    """Arguments of `scan`: a reset two steps after a step, or padding from it on, in a row."""
    is_row = np.arange(ROWS) == row
    if option == "reset after":
        return {"reset": jnp.asarray(np.arange(STEPS)[:, None] == np.where(is_row, step + 2, -1))}
    return {"seq_lengths": jnp.asarray(np.where(is_row, step, STEPS))} if option == "padded" else {}


def planted(arguments, group, number, step, row, value):
    """The arguments with a value in a step and row of xs, or in a row of a leaf of the carry, or in a parameter."""
    leaves, structure = jax.tree.flatten(arguments[group])
    floats = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    at = floats[number % len(floats)]
    index = {"xs": (step, row), "carry": (row,), "params": (0,) * leaves[at].ndim}[group]
    leaves[at] = leaves[at].at[index].set(VALUES[value])
    return {**arguments, group: jax.tree.unflatten(structure, leaves)}


def check(case, value, option, memory, platform, mode, place=("xs", 0, 3, 1)):
    params, carry, xs = case.arguments(length=STEPS, batch=ROWS)
    group, number, step, row = place
    arguments = planted({"params": params, "carry": carry, "xs": xs}, group, number, step, row, value)
    options = options_of(option, step, row)

    def outcome(**how):
        def run(params, carry, xs):
            return case.scan(params, carry, xs, **options, **how)

        return results(run, arguments, lambda *outputs: case.loss(outputs), mode=mode, groups=[*arguments])

    expected = outcome(engine="lax", memory=None)
    with rs.tuned_for(platform):
        actual = outcome(memory=MEMORIES[memory])
    assert_not_spread(actual, expected, f"{value}, {option}, {memory}, {platform}, {mode}, {place}", tolerance=1e-9)


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
    """Each value and option with another memory choice, platform, derivative, and place of the value for each cell."""
    place = [*CASES].index(name)
    # Where `lax.scan` drops the rule of the relu in an IndRNN, a loop in Python tells that its NaN is wrong.
    modes = [*MODES[:2], "reverse"] if name == "IndRNN" and lax_scan_drops_rules() else MODES
    for number, (value, option) in enumerate((value, option) for value in VALUES for option in OPTIONS):
        memory = [*MEMORIES][(place + number) % len(MEMORIES)]
        group = ("xs", "carry", "xs", "params")[(place + number) % 4]
        where = group, place // 4 + number, (place + 2 * number) % STEPS, (place // 2 + number) % ROWS
        yield value, option, memory, PLATFORMS[(place + number // 2) % 3], modes[(place // 3 + number) % 3], where


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
