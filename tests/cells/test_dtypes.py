"""Mixed precision: `dtype`, `param_dtype` and `carry_dtype` apart from each other."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from tiers import variants
from zoo.cases import CASES


def in_bfloat16(cell):
    """The same cell, computing in bfloat16 with a float32 carry."""
    if hasattr(cell, "cells"):
        return rs.stack(*map(in_bfloat16, cell.cells))
    return replace(cell, dtype=jnp.bfloat16, carry_dtype=jnp.float32)


def dtypes(tree):
    return {leaf.dtype.name for leaf in jax.tree.leaves(tree)}


def test_bfloat16_with_a_float32_carry_is_near_float32(case, case_of):
    mixed = case_of(in_bfloat16(case.cell))
    arguments = case.arguments()
    (last, ys), gradients = jax.jit(lambda *a: mixed.gradients(mixed.scan, *a))(*arguments)
    assert dtypes(last) == {"float32"}
    assert dtypes(ys) == {"bfloat16"}
    assert dtypes(gradients) == {"float32"}

    exact = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    # bfloat16 rounds to 2**-9 = 0.002. Seven steps of a few such roundings, and for gradients their sum over steps.
    for actual, expected, tolerance in [((last, ys), exact[0], 0.02), (gradients, exact[1], 0.06)]:
        for leaf, expected_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            scale = jnp.abs(expected_leaf).max()
            np.testing.assert_allclose(leaf.astype(jnp.float32), expected_leaf, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("dtype", variants(["bfloat16", "float16"], ["bfloat16"]))
def test_everything_in_16_bits(case, dtype):
    def with_dtype(cell):
        return rs.stack(*map(with_dtype, cell.cells)) if hasattr(cell, "cells") else replace(cell, param_dtype=dtype)

    cell = with_dtype(case.cell)
    params = cell.init(jax.random.key(0), 3)
    x = jnp.ones((2, 3), dtype)
    carry = cell.initial_carry(x)
    assert dtypes((params, carry)) == {dtype}
    last, ys = jax.jit(lambda *a: rs.scan(cell, *a))(params, carry, x[None])
    assert dtypes((last, ys)) == {dtype}
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((params, last, ys)))


@pytest.mark.parametrize("carry_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("x_dtype", ["bfloat16", "float32"])
def test_each_step_returns_the_dtype_of_its_carry_and_y_in_that_of_the_computation(case, carry_dtype, x_dtype):
    params, carry, xs = jax.eval_shape(case.arguments)

    def cast(tree, dtype):
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), tree)

    last, y = jax.eval_shape(case.cell, params, cast(carry, carry_dtype), cast(xs, x_dtype).update(shape=xs.shape[1:]))
    assert dtypes(last) == {carry_dtype}
    assert dtypes(y) == {"float32"}


def test_the_initial_carry_is_typed_like_the_input(case):
    for dtype in ("bfloat16", "float16", "float32"):
        assert dtypes(case.cell.initial_carry(jnp.ones((2, 3), dtype))) == {dtype}
    # Integers cannot hold a state, so there the parameters' dtype is taken.
    assert dtypes(case.cell.initial_carry(jnp.ones((2, 3), jnp.int8))) == {"float32"}


def test_carry_dtype_wins_over_the_inputs():
    cell = rs.cells.LSTM(4, carry_dtype="float32")
    assert dtypes(cell.initial_carry(jnp.ones((2, 3), jnp.bfloat16))) == {"float32"}


@pytest.mark.parametrize("dtype", [jnp.int8, bool])
def test_integer_inputs_are_taken_as_numbers(case, dtype, assert_trees_close):
    params, carry, _ = case.arguments(batch=2)
    one_hot = jnp.eye(3, dtype=dtype)[jnp.array([[0, 2], [1, 1]])]
    run = case.jitted
    assert_trees_close(run(params, carry, one_hot), run(params, carry, one_hot.astype(jnp.float32)), tolerance=1e-6)


def test_a_float32_cell_state_sums_what_bfloat16_would_lose(case_of):
    # Gates wide open: each step adds tanh(0.001) to a state of 1, less than half of bfloat16's step of 2**-7 there.
    cell = rs.cells.LSTM(1, dtype=jnp.bfloat16, carry_dtype=jnp.float32)
    params = {
        "kernel": jnp.zeros((1, 4)),
        "recurrent_kernel": jnp.zeros((1, 4)),
        "bias": jnp.array([100.0, 100.0, 0.001, 100.0]),
    }
    carry = (jnp.zeros((1, 1)), jnp.ones((1, 1)))
    (_, state), _ = case_of(cell).jitted(params, carry, jnp.zeros((500, 1, 1)))
    np.testing.assert_allclose(state, 1.5, atol=0.002)


def test_a_gru_with_its_update_gate_open_keeps_a_float32_state_as_it_is(case_of):
    # 0.1 is no bfloat16.
    cell = rs.cells.GRU(1, dtype=jnp.bfloat16, carry_dtype=jnp.float32)
    case = case_of(cell)
    params, _, xs = case.arguments()
    params |= {"bias": jnp.array([0.0, 100.0, 0.0])}
    (state,), _ = case.jitted(params, (jnp.full((3, 1), 0.1),), xs)
    np.testing.assert_array_equal(state, np.float32(0.1))


def test_gradients_are_summed_over_time_in_the_dtype_of_the_parameters(case_of):
    # Each of 600 steps adds 1 to the bias' gradient; a sum in bfloat16 would stop at 256.
    cell = rs.cells.RNN(1, activation="relu", dtype=jnp.bfloat16)
    params = {"kernel": jnp.zeros((1, 1)), "recurrent_kernel": jnp.zeros((1, 1)), "bias": jnp.ones((1,))}
    case = case_of(cell)
    gradient = jax.jit(jax.grad(lambda params, *rest: case.scan(params, *rest)[1].astype(jnp.float32).sum()))
    assert gradient(params, (jnp.zeros((1, 1)),), jnp.zeros((600, 1, 1)))["bias"].item() == 600


def test_dtype_may_be_spelt_in_any_way():
    spellings = ["bfloat16", jnp.bfloat16, jnp.dtype("bfloat16")]
    cells = {rs.cells.GRU(4, dtype=dtype, param_dtype=dtype, carry_dtype=dtype) for dtype in spellings}
    assert len(cells) == 1
    assert repr(cells.pop()) == "GRU(hidden_size=4, dtype=bfloat16, param_dtype=bfloat16, carry_dtype=bfloat16)"
    # np.dtype("float64") equals None.
    assert rs.cells.GRU(4, dtype=np.dtype("float64")) != rs.cells.GRU(4)


@pytest.mark.parametrize("wide", [pytest.param(False, marks=pytest.mark.slow), True], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_cells_need_no_implicit_promotion(name, wide):
    case = CASES[name]

    def loss(params, carry, xs):
        leaves = jax.tree.leaves(case.scan(params, carry, xs))
        return sum(jnp.sum(jnp.abs(leaf)) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact))

    with jax.enable_x64(wide), jax.numpy_dtype_promotion("strict"):
        arguments = case.arguments(length=3, batch=2)
        types = jax.eval_shape(jax.value_and_grad(loss, argnums=0, allow_int=True), *arguments)
    assert types[0].dtype == (jnp.float64 if wide else jnp.float32)
