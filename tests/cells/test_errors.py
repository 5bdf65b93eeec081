"""What does not fit is refused while tracing, in words that name what was got, what was expected and why."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells


KEY = jax.random.key(0)

# Tests marked so give wrong types, which the run-time type checks would refuse before the cell does.
bad_input = pytest.mark.bad_input


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def params_of(cell, input_size=3):
    return jax.eval_shape(lambda: cell.init(KEY, input_size))


def call(cell, *, params=None, carry=None, x=None):
    """Trace one step, with right shapes for whatever is not given."""
    x = floats(2, 3) if x is None else x
    carry = jax.eval_shape(cell.initial_carry, floats(2, 3)) if carry is None else carry
    return jax.eval_shape(cell, params_of(cell) if params is None else params, carry, x)


def test_an_input_of_another_size(case):
    name = type(getattr(case.cell, "cells", [case.cell])[0]).__name__
    with pytest.raises(
        ValueError, match=rf"^{name}: one step's input must be \(N, 3\) .* got float32\[2,7\]\. The inp"
    ):
        call(case.cell, x=floats(2, 7))


@bad_input
def test_an_input_without_axes():
    with pytest.raises(ValueError, match=r"^GRU: one step's input must be \(N, 3\) .* got float32\[\]\."):
        call(cells.GRU(4), x=floats())


def test_a_carry_of_another_batch_size(case):
    carry = jax.eval_shape(case.cell.initial_carry, floats(5, 3))
    message = r": hidden in the carry must be \(2, 4\) .*float32\[2,3\].*; got float32\[5,4\]"
    with pytest.raises(ValueError, match=message):
        call(case.cell, carry=carry)


def test_a_part_of_the_carry_of_another_hidden_size():
    with pytest.raises(ValueError, match=r"^LSTM: cell in the carry must be \(2, 4\).* got float32\[2,5\]"):
        call(cells.LSTM(4), carry=(floats(2, 4), floats(2, 5)))


def test_a_carry_of_another_number_of_parts():
    message = r"^LSTM: the carry must be the tuple \(hidden, cell\) of arrays \(2, 4\); got \(float32\[2,4\],\)\. Start"
    with pytest.raises(TypeError, match=message):
        call(cells.LSTM(4), carry=(floats(2, 4),))


@bad_input
@pytest.mark.parametrize(
    ("carry", "shown"),
    [
        (floats(2, 4), r"float32\[2,4\]"),
        ([floats(2, 4)], r"\[float32\[2,4\]\]"),
        ({"hidden": floats(2, 4)}, r"\{hidden: float32\[2,4\]\}"),
    ],
    ids=["array", "list", "dict"],
)
def test_a_carry_that_is_no_tuple(carry, shown):
    with pytest.raises(TypeError, match=rf"^GRU: the carry must be the tuple \(hidden,\) .* got {shown}\. Start from"):
        call(cells.GRU(4), carry=carry)


def test_a_carry_of_integers():
    carry = (jax.ShapeDtypeStruct((2, 4), jnp.int32),)
    with pytest.raises(TypeError, match=r"^RNN: hidden in the carry must be of a floating dtype, .* got int32\[2,4\]"):
        call(cells.RNN(4), carry=carry)


@pytest.mark.parametrize(
    ("cell", "other"),
    [
        (cells.LSTM(4), cells.GRU(4)),
        (cells.LSTM(4), cells.LSTM(5)),
        # The kernels of these two are of the same shape.
        (cells.LSTM(3), cells.GRU(4, reset_after=False)),
        (cells.GRU(4), cells.LSTM(4)),
        (cells.GRU(4, reset_after=False), cells.RNN(4)),
        (cells.RNN(4), cells.GRU(4)),
        pytest.param(cells.RNN(4), rs.stack(cells.RNN(4)), marks=bad_input),
    ],
    ids=repr,
)
def test_parameters_of_another_cell(cell, other):
    name, size = type(cell).__name__, cell.hidden_size
    message = (
        rf"^{name}: the parameters of {size} units must be 'kernel' \(D, \d+\), 'recurrent_kernel' \({size}, \d+\), "
    )
    with pytest.raises(ValueError, match=message + r".*; got '.*\. They belong to a cell of another kind or size\."):
        call(cell, params=params_of(other))


@pytest.mark.parametrize("reset_after", [True, False])
def test_parameters_of_a_gru_with_the_other_reset(reset_after):
    cell, other = cells.GRU(4, reset_after=reset_after), cells.GRU(4, reset_after=not reset_after)
    message = rf"^GRU: .* They were made with reset_after={not reset_after}, and the cell has {reset_after}\."
    with pytest.raises(ValueError, match=message):
        call(cell, params=params_of(other))


def test_no_parameters():
    with pytest.raises(ValueError, match=r"^LSTM: the parameters of 4 units must be 'kernel' .* got none\."):
        call(cells.LSTM(4), params={})


@bad_input
def test_parameters_that_are_no_dictionary():
    with pytest.raises(TypeError, match=r"^LSTM: the parameters must be a dictionary of 'kernel' .* got tuple\. Make"):
        call(cells.LSTM(4), params=(floats(3, 16),))


@pytest.mark.parametrize("cell_type", [cells.LSTM, cells.GRU, cells.RNN])
@pytest.mark.parametrize("size", [0, -1, True])
def test_a_hidden_size_that_cannot_be(cell_type, size):
    with pytest.raises(ValueError, match=rf"^{cell_type.__name__}: `hidden_size` must be an int .* 1; got {size}\."):
        cell_type(size)


@bad_input
def test_a_hidden_size_that_is_no_int():
    with pytest.raises(ValueError, match=r"^LSTM: `hidden_size` must be an int of at least 1; got 4\.0\."):
        cells.LSTM(4.0)


def test_an_input_size_that_cannot_be(case):
    with pytest.raises(ValueError, match=r": `input_size` must be an int of at least 1; got 0\."):
        case.cell.init(KEY, 0)


@bad_input
def test_an_unknown_activation():
    with pytest.raises(
        ValueError, match=r"^RNN: `activation` must be a function or one of .*; got 'sigmid'\. Did you mean 'sigmoid'"
    ):
        cells.RNN(4, activation="sigmid")


@pytest.mark.parametrize("field", ["dtype", "param_dtype", "carry_dtype"])
@pytest.mark.parametrize("dtype", [jnp.int32, "complex64", "bfloat", bool])
def test_a_dtype_that_is_not_floating(field, dtype):
    with pytest.raises(TypeError, match=rf"^GRU: `{field}` must be a floating dtype, such as jnp\.bfloat16; got .+\."):
        cells.GRU(4, **{field: dtype})


def test_no_dtype_for_the_parameters():
    with pytest.raises(TypeError, match=r"^LSTM: `param_dtype` must be a floating dtype, .* got None\."):
        cells.LSTM(4, param_dtype=None)


def test_a_stack_of_nothing():
    with pytest.raises(ValueError, match=r"^stack: there must be at least one cell; got none\."):
        rs.stack()


@pytest.mark.bad_input
def test_a_stack_of_what_is_no_cell():
    with pytest.raises(TypeError, match=r"^stack: a cell must be .* got list, without 'init', .*one by one"):
        rs.stack([cells.LSTM(4), cells.GRU(4)])


def test_a_carry_of_a_stack_without_one_for_each_cell():
    carry = jax.eval_shape(cells.LSTM(4).initial_carry, floats(2, 3))
    with pytest.raises(
        TypeError, match=r"^stack: the carry must be a tuple with one carry for each of the 3 cells; got"
    ):
        call(rs.stack(cells.LSTM(4), cells.LSTM(4), cells.LSTM(4)), carry=carry)


@pytest.mark.parametrize("given", [cells.LSTM(4), rs.stack(*[cells.LSTM(4)] * 3)], ids=["cell", "taller"])
def test_parameters_of_a_stack_without_one_entry_for_each_cell(given):
    message = r"^stack: the parameters must be .* of the 2 cells, 'layer_0', 'layer_1'; got '.*'\. Make them with"
    with pytest.raises(ValueError, match=message):
        call(rs.stack(cells.LSTM(4), cells.LSTM(4)), params=params_of(given))


def test_a_misfit_shows_through_scan_too():
    cell = cells.LSTM(4)
    with pytest.raises(ValueError, match=r"^LSTM: one step's input must be \(N, 3\)"):
        rs.scan(cell, cell.init(KEY, 3), cell.initial_carry(jnp.ones((2, 3))), jnp.ones((5, 2, 7)))
