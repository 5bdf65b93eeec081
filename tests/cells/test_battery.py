"""What holds for every cell of the library, in every one of its forms: the cells of tests/support/zoo.

Each property is one test per cell. To compile little, each compares one or two programs; the properties of `scan`
itself are tested with fewer cells and in more depth in test_properties.py and tests/test_scan.py. `make test` checks a
few telling cells, `make test-all` all forms.
"""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from tiers import variants
from zoo.case import assert_trees_close
from zoo.cases import CASES, FEW, SEVERAL


# Float32 sums in another order; every test in float64 says so.
SINGLE = 2e-5


few_in_make_test = pytest.mark.parametrize("case", variants(CASES, FEW))
several_in_make_test = pytest.mark.parametrize("case", variants(CASES, SEVERAL))
all_in_make_test = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def gradients_of(case, arguments, **options):
    """Outputs and gradients of `scan`, compiled."""
    return jax.jit(lambda *a: case.gradients(lambda *a: case.scan(*a, **options), *a))(*arguments)


# A linear loop; nonlinear ones are in the test below, in test_scan.py and in test_decoder.py.
@pytest.mark.parametrize("case", variants(CASES, ("LRU",)))
@pytest.mark.usefixtures("x64")
def test_every_engine_and_memory_choice_gives_the_gradients_of_a_plain_scan(case):
    arguments = case.arguments(length=5)
    plain = gradients_of(case, arguments, memory=None, engine="lax")
    moved = [
        not np.array_equal(*pair)
        for pair in zip(jax.tree.leaves(plain[0][0]), jax.tree.leaves(arguments[1]), strict=True)
    ]
    assert all(moved)
    assert_every_parameter_has_a_gradient(plain)
    for options in (
        {},
        {"memory": rs.Memory(recompute="all")},
        {"memory": rs.Memory(segment=2)},
        {"memory": rs.Memory(recompute=case.cell.names[:1]), "engine": "lax"},
    ):
        assert_trees_close(gradients_of(case, arguments, **options), plain, tolerance=1e-11)


def assert_every_parameter_has_a_gradient(outputs_and_gradients):
    for path, leaf in jax.tree_util.tree_leaves_with_path(outputs_and_gradients[1][0]):
        assert np.any(leaf != 0), jax.tree_util.keystr(path)


# Cells around cells, and images. Each other cell has a test beside it that compares values and gradients of the default
# choice with the equations.
WITHOUT_EQUATIONS = ("ConvGRU", "Dropout", "Residual", "Windowed", "Zoneout")


@pytest.mark.parametrize("case", variants(CASES, WITHOUT_EQUATIONS))
@pytest.mark.usefixtures("x64")
def test_the_default_choice_gives_the_gradients_of_a_plain_scan(case):
    """Of the few cells the test above says it, under every choice."""
    arguments = case.arguments(length=5)
    plain = gradients_of(case, arguments, memory=None, engine="lax")
    assert_every_parameter_has_a_gradient(plain)
    assert_trees_close(gradients_of(case, arguments), plain, tolerance=1e-11)


@several_in_make_test
def test_auto_is_the_fission_engine_and_every_name_is_known(case):
    params, carry, xs = case.arguments()
    explanation = rs.explain(case.cell, params, carry, xs, memory=rs.Memory(recompute=tuple(case.cell.names)))
    assert explanation.engine == "fission", explanation.reason


@several_in_make_test
@pytest.mark.usefixtures("x64")
def test_a_scan_is_a_loop_of_steps(case):
    arguments = case.arguments(length=3)
    assert_trees_close(case.jitted(*arguments), jax.jit(case.loop)(*arguments))


@few_in_make_test
def test_vmap_is_a_loop_over_the_mapped(case):
    pairs = list(zip(case.arguments(length=2), case.arguments(length=2, seed=1), strict=True))
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair) for pair in pairs]
    one_by_one = [case.jitted(*arguments) for arguments in zip(*pairs, strict=True)]
    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *one_by_one)
    assert_trees_close(jax.jit(jax.vmap(case.scan))(*stacked), expected, tolerance=SINGLE)


@few_in_make_test
def test_padding_holds_the_carry_and_hides_what_it_holds(case):
    params, carry, xs = case.arguments(length=4)
    lengths = np.array([0, 2, 4])
    padded = jnp.where((np.arange(4)[:, None] < lengths).reshape(4, 3, *[1] * len(case.features)), xs, jnp.nan)
    options = {"seq_lengths": jnp.asarray(lengths)}
    (last, ys), gradients = gradients_of(case, (params, carry, padded), **options)
    assert all(
        np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((last, ys, gradients)) if leaf.dtype != jax.dtypes.float0
    )

    of_row = lambda tree, row: jax.tree.map(lambda leaf: leaf[row], tree)  # noqa: E731
    short, _ = case.jitted(params, carry, xs[:2])
    whole, whole_ys = case.jitted(params, carry, xs)
    for row, expected in ((0, carry), (1, short), (2, whole)):
        assert_trees_close(of_row(last, row), of_row(expected, row), tolerance=SINGLE)
    steps = lambda row, length: jax.tree.map(lambda leaf: leaf[:length, row], (ys, whole_ys))  # noqa: E731
    for row, length in enumerate((0, 2, 4)):
        assert_trees_close(*steps(row, length), tolerance=SINGLE)
        assert not any(np.any(leaf[length:, row]) for leaf in jax.tree.leaves(ys))


@few_in_make_test
def test_no_step_one_step_and_one_row(case):
    params, carry, xs = case.arguments(length=1)
    last, ys = case.jitted(params, carry, xs[:0])
    assert_trees_close(last, carry, tolerance=0)
    new_carry, y = jax.jit(case.cell)(params, carry, xs[0])
    assert all(leaf.shape == (0, *y_leaf.shape) for leaf, y_leaf in zip(*map(jax.tree.leaves, (ys, y)), strict=True))
    assert_trees_close(
        case.jitted(params, carry, xs),
        jax.tree.map(lambda leaf: leaf, (new_carry, jax.tree.map(lambda leaf: leaf[None], y))),
        tolerance=SINGLE,
    )

    one = jax.jit(case.cell)(params, jax.tree.map(lambda leaf: leaf[1:2], carry), xs[0, 1:2])
    assert_trees_close(one, jax.tree.map(lambda leaf: leaf[1:2], (new_carry, y)), tolerance=SINGLE)
    if case.rows_alone:
        row = jax.jit(case.cell)(params, jax.tree.map(lambda leaf: leaf[1], carry), xs[0, 1])
        assert_trees_close(row, jax.tree.map(lambda leaf: leaf[1], (new_carry, y)), tolerance=SINGLE)


@several_in_make_test
def test_chunks_with_the_carry_passed_on_are_the_whole_and_the_past_sees_no_future(case):
    params, carry, xs = case.arguments(length=4)
    middle, first_ys = case.jitted(params, carry, xs[:2])
    last, second_ys = case.jitted(params, middle, xs[2:])
    ys = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first_ys, second_ys)
    whole = case.jitted(params, carry, xs)
    assert_trees_close((last, ys), whole, tolerance=SINGLE)

    changed_last, changed_ys = case.jitted(params, carry, xs.at[2:].add(1.0))
    assert_trees_close(
        jax.tree.map(lambda leaf: leaf[:2], (changed_ys,)),
        jax.tree.map(lambda leaf: leaf[:2], (whole[1],)),
        tolerance=0,
    )
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(changed_last), jax.tree.leaves(whole[0]), strict=True))


@several_in_make_test
def test_rows_of_the_batch_do_not_see_each_other(case):
    params, carry, xs = case.arguments(length=2)
    whole = case.jitted(params, carry, xs)
    (last, ys) = case.jitted(params, carry, xs.at[:, 1].add(1.0))
    others = lambda tree, axis: jax.tree.map(lambda leaf: leaf.take(np.array([0, 2]), axis), tree)  # noqa: E731
    assert_trees_close((others(last, 0), others(ys, 1)), (others(whole[0], 0), others(whole[1], 1)), tolerance=0)
    assert any(np.any(a[1] != b[1]) for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(whole[0]), strict=True))


# The stack, which has an LSTM, is in test_dtypes.py.
@pytest.mark.parametrize("case", variants(CASES, ("LRU",)))
def test_bfloat16_with_a_carry_of_32_bits_is_near_float32(case):
    mixed = replace_dtypes(case)
    arguments = case.arguments(length=4)
    (last, ys), gradients = gradients_of(mixed, arguments)
    (exact_last, exact_ys), exact_gradients = gradients_of(case, arguments)
    assert_same_dtypes(last, exact_last)
    assert_same_dtypes(gradients, exact_gradients)
    # A number per row, such as a ponder cost, has more bits.
    assert {leaf.dtype.name for leaf in jax.tree.leaves(ys) if leaf.ndim > 2} == {"bfloat16"}
    # bfloat16 rounds to 2**-9 = 0.002: four steps of a few such roundings, and for gradients their sum over steps.
    for actual, exact, tolerance in (((last, ys), (exact_last, exact_ys), 0.03), (gradients, exact_gradients, 0.1)):
        for (path, leaf), exact_leaf in zip(
            jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(exact), strict=True
        ):
            if leaf.dtype == bool:
                assert np.array_equal(leaf, exact_leaf), jax.tree_util.keystr(path)
            elif leaf.dtype != jax.dtypes.float0:
                distance = np.abs(np.asarray(leaf, exact_leaf.dtype) - exact_leaf).max()
                assert distance <= tolerance * np.abs(exact_leaf).max(), jax.tree_util.keystr(path)


def replace_dtypes(case):
    """The same case, computing in bfloat16 with a carry of 32 bits."""

    def computing_in_bfloat16(cell):
        if hasattr(cell, "param_dtype"):
            return replace(cell, dtype=jnp.bfloat16, carry_dtype=jnp.float32)
        inner = (
            {"cells": tuple(map(computing_in_bfloat16, cell.cells))}
            if hasattr(cell, "cells")
            else {"cell": computing_in_bfloat16(cell.cell)}
        )
        return replace(cell, **inner)

    return replace(case, cell=computing_in_bfloat16(case.cell))


def assert_same_dtypes(one, other):
    assert [leaf.dtype for leaf in jax.tree.leaves(one)] == [leaf.dtype for leaf in jax.tree.leaves(other)]


@all_in_make_test
def test_a_cell_is_a_value_and_shows_its_configuration(case):
    copy = pickle.loads(pickle.dumps(case.cell))
    assert copy == case.cell
    assert hash(copy) == hash(case.cell)
    shown = repr(case.cell)
    assert shown.startswith(type(case.cell).__name__)
    assert " at 0x" not in shown


@few_in_make_test
def test_parameters_are_a_plain_dictionary_and_start_from_the_key(case):
    make = jax.jit(case.cell.init, static_argnums=1)
    params, again, other = (make(jax.random.key(seed), case.features[-1]) for seed in (0, 0, 1))
    assert type(params) is dict
    assert_trees_close(params, again, tolerance=0)
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other), strict=True))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params))
    carry = case.cell.initial_carry(jnp.ones((3, *case.features)))
    assert type(carry) is tuple
    _, ys = case.jitted(params, carry, jnp.ones((2, 3, *case.features)))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(ys))


@several_in_make_test
def test_a_carry_of_another_batch_and_an_input_of_another_size_are_refused(case):
    params, carry, xs = jax.eval_shape(case.arguments)
    x = jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
    larger = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] + 1, *leaf.shape[1:]), leaf.dtype), carry)
    with pytest.raises(ValueError, match=r"Batch.* hidden size"):
        jax.eval_shape(case.cell, params, larger, x)
    with pytest.raises(ValueError, match="one step's input must be"):
        jax.eval_shape(case.cell, params, carry, jax.ShapeDtypeStruct((*x.shape[:-1], 9), x.dtype))
