"""What a cell is before it runs: its configuration, its parameters and how they start, its names."""

import pickle
from dataclasses import FrozenInstanceError, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.cells import initializers
from rnnscan.ir.trace import trace


KEY = jax.random.key(0)


def shapes(tree):
    return jax.tree.map(jnp.shape, tree)


@pytest.mark.parametrize(
    ("cell", "columns", "added"),
    [
        (cells.LSTM(4), 16, {}),
        (cells.GRU(4), 12, {"recurrent_bias": (4,)}),
        (cells.GRU(4, reset_after=False), 12, {}),
        (cells.RNN(4), 4, {}),
    ],
)
def test_parameters_are_a_plain_dictionary_of_the_documented_shapes(cell, columns, added):
    params = cell.init(KEY, 3)
    assert type(params) is dict
    assert shapes(params) == {"kernel": (3, columns), "recurrent_kernel": (4, columns), "bias": (columns,)} | added
    assert {leaf.dtype.name for leaf in params.values()} == {"float32"}


def test_a_stack_has_one_dictionary_a_layer_each_fed_by_the_one_below():
    lower, upper = cells.LSTM(4), cells.GRU(5)
    stack = rs.stack(lower, upper)
    params = stack.init(KEY, 3)
    assert shapes(params) == {"layer_0": shapes(lower.init(KEY, 3)), "layer_1": shapes(upper.init(KEY, 4))}
    assert stack.output_size == 5
    assert shapes(stack.initial_carry(jnp.ones((2, 3)))) == (((2, 4), (2, 4)), ((2, 5),))


def test_layers_of_a_stack_start_from_different_keys():
    params = rs.stack(cells.RNN(4), cells.RNN(4)).init(KEY, 4)
    assert not np.array_equal(params["layer_0"]["kernel"], params["layer_1"]["kernel"])


@pytest.mark.parametrize(("cell", "states"), [(cells.LSTM(4), 2), (cells.GRU(4), 1), (cells.RNN(4), 1)])
def test_the_initial_carry_is_a_tuple_of_zeros(cell, states):
    carry = cell.initial_carry(jnp.full((2, 3), jnp.nan))
    assert type(carry) is tuple
    assert shapes(carry) == ((2, 4),) * states
    assert all(not np.any(leaf) for leaf in carry)


def test_a_cell_emits_the_names_that_it_lists_and_no_others(case):
    params, carry, xs = case.arguments()
    equations = trace(lambda x: jax.tree.leaves(case.cell(params, carry, x)), xs[0]).equations
    emitted = {equation.params["name"] for equation in equations if equation.primitive.name == "name"}
    assert emitted == set(case.cell.names)


def test_a_cell_is_a_value(case):
    copy = pickle.loads(pickle.dumps(case.cell))
    assert copy == case.cell
    assert hash(copy) == hash(case.cell)
    field = "cells" if hasattr(case.cell, "cells") else "hidden_size"
    with pytest.raises(FrozenInstanceError):
        setattr(case.cell, field, 5)


def test_cells_of_other_configurations_are_not_equal():
    different = {
        cells.LSTM(4),
        cells.LSTM(5),
        cells.LSTM(4, forget_bias=0.0),
        cells.LSTM(4, bias_init=jax.nn.initializers.ones),
        cells.GRU(4),
        cells.GRU(4, reset_after=False),
        cells.RNN(4),
        cells.RNN(4, activation="relu"),
    }
    assert len(different) == 8


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (cells.LSTM(4), "LSTM(hidden_size=4)"),
        (cells.LSTM(4, forget_bias=0.0), "LSTM(hidden_size=4, forget_bias=0.0)"),
        (cells.GRU(4, dtype=jnp.bfloat16), "GRU(hidden_size=4, dtype=bfloat16)"),
        (cells.RNN(4, activation="relu"), "RNN(hidden_size=4, activation='relu')"),
        (cells.RNN(4, kernel_init=initializers.orthogonal), "RNN(hidden_size=4, kernel_init=orthogonal)"),
        (rs.stack(cells.LSTM(4), cells.GRU(5)), "Stack(cells=(LSTM(hidden_size=4), GRU(hidden_size=5)))"),
    ],
)
def test_repr_shows_what_differs_from_the_default(cell, expected):
    assert repr(cell) == expected


def test_the_forget_bias_is_in_the_forget_gate_only():
    bias = cells.LSTM(4, forget_bias=2.5).init(KEY, 3)["bias"]
    np.testing.assert_array_equal(bias.reshape(4, 4), [[0] * 4, [2.5] * 4, [0] * 4, [0] * 4])
    assert not np.any(cells.LSTM(4, forget_bias=0.0).init(KEY, 3)["bias"])


def test_the_forget_bias_is_added_to_what_bias_init_gives():
    bias = cells.LSTM(4, bias_init=jax.nn.initializers.ones).init(KEY, 3)["bias"]
    np.testing.assert_array_equal(bias.reshape(4, 4), [[1] * 4, [2] * 4, [1] * 4, [1] * 4])


def test_bias_init_makes_every_bias():
    params = cells.GRU(4, bias_init=jax.nn.initializers.normal(1.0)).init(KEY, 3)
    biases = np.concatenate([params["bias"], params["recurrent_bias"]])
    assert len(set(biases.tolist())) == 16


@pytest.mark.parametrize("cell", [cells.LSTM(6), cells.GRU(6), cells.RNN(6)], ids=["lstm", "gru", "rnn"])
def test_each_recurrent_block_is_orthogonal_and_of_its_own(cell):
    blocks = np.split(np.asarray(cell.init(KEY, 3)["recurrent_kernel"]), cell.blocks, axis=1)
    for one in blocks:
        np.testing.assert_allclose(one @ one.T, np.eye(6), atol=1e-6)
    assert len({one.tobytes() for one in blocks}) == cell.blocks


@pytest.mark.parametrize("cell", [cells.LSTM(64), cells.GRU(64), cells.RNN(64)], ids=["lstm", "gru", "rnn"])
def test_the_scale_of_each_kernel_block_depends_on_the_input_size_alone(cell):
    # 100 * 64 samples of standard deviation 1 / sqrt(100), whose estimate is good to 1 / sqrt(2 * 6400) = 0.9 percent.
    for one in np.split(np.asarray(cell.init(KEY, 100)["kernel"]), cell.blocks, axis=1):
        np.testing.assert_allclose(one.std(), 0.1, rtol=0.04)


def test_each_block_is_initialized_by_itself():
    # Glorot's scale depends on the block's columns too: on H, and not on 4H.
    glorot = jax.nn.initializers.glorot_uniform()
    params = cells.LSTM(64, kernel_init=glorot, recurrent_init=glorot).init(KEY, 100)
    for kernel, rows in [(params["kernel"], 100), (params["recurrent_kernel"], 64)]:
        limit = np.sqrt(6 / (rows + 64))
        assert 0.99 * limit < np.abs(kernel).max() <= limit


def test_orthogonal_has_orthonormal_rows_or_columns_whichever_are_fewer():
    tall, wide = initializers.orthogonal(KEY, (6, 4)), initializers.orthogonal(KEY, (4, 6))
    np.testing.assert_allclose(tall.T @ tall, np.eye(4), atol=1e-6)
    np.testing.assert_allclose(wide @ wide.T, np.eye(4), atol=1e-6)


def test_init_depends_on_the_key_and_on_nothing_else():
    cell = replace(cells.GRU(4), bias_init=jax.nn.initializers.normal())
    jax.tree.map(np.testing.assert_array_equal, cell.init(KEY, 3), cell.init(KEY, 3))
    other = cell.init(jax.random.key(1), 3)
    assert all(not np.array_equal(leaf, other[name]) for name, leaf in cell.init(KEY, 3).items())
