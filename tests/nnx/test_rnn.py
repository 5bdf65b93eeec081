"""rnnscan.nnx.RNN computes what flax.nnx.RNN does, run beside it: values, carries and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan.nnx
from nnx_pairs import (
    BATCH,
    CELLS,
    FEATURES,
    TIME,
    UNITS,
    assert_same,
    both,
    call,
    make_cell,
    random_carry,
    random_inputs,
)
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

LENGTHS = jnp.array([2, TIME, 1])

OPTIONS = {
    "time_major": {"time_major": True, "keep_order": True},
    "return_carry": {"return_carry": True},
    "reverse": {"reverse": True, "return_carry": True},
    "reverse, in order": {"reverse": True, "keep_order": True},
    "all": {"time_major": True, "return_carry": True, "reverse": True, "keep_order": True},
}


@pytest.mark.core("Flax modules")
@pytest.mark.parametrize("name", variants(CELLS.keys(), ["LSTMCell", "SimpleCell"]))
def test_every_cell(name):
    models = both(lambda: make_cell(name), return_carry=True, reverse=True, keep_order=True)
    assert_same(models, random_inputs(), random_carry(name), seq_lengths=LENGTHS)


@pytest.mark.core("Flax modules")
@pytest.mark.parametrize("options", variants(OPTIONS, ["time_major", "reverse", "all"]))
def test_every_option(options):
    """Given with a call, and given when the module is made."""
    outputs, *_ = assert_same(both(lambda: make_cell("SimpleCell")), random_inputs(), **options)
    assert_trees_close(call(rnnscan.nnx.RNN(make_cell("SimpleCell"), **options), random_inputs()), outputs)


@pytest.mark.core("Flax modules")
@pytest.mark.parametrize("name", variants(["return_carry", "reverse", "all"], ["reverse", "all"]))
def test_options_with_lengths(name):
    options = OPTIONS[name]
    inputs = random_inputs(*((TIME, BATCH) if name == "all" else (BATCH, TIME)), FEATURES)
    models = both(lambda: make_cell("SimpleCell"))
    assert_same(models, inputs, random_carry("SimpleCell"), seq_lengths=LENGTHS, **options)


def test_what_a_call_says_comes_before_what_the_module_says():
    outputs = call(rnnscan.nnx.RNN(make_cell("SimpleCell")), random_inputs())
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"), **OPTIONS["all"])
    assert_trees_close(call(model, random_inputs(), **dict.fromkeys(OPTIONS["all"], False)), outputs)


@pytest.mark.parametrize(("batch", "time_major"), [((), True), ((2, 3), True), ((2, 3), False)], ids=str)
def test_other_numbers_of_batch_axes(batch, time_major):
    shape = (TIME, *batch) if time_major else (*batch, TIME)
    models = both(lambda: make_cell("SimpleCell"), time_major=time_major, return_carry=True)
    inputs, start = random_inputs(*shape, FEATURES), random_carry("SimpleCell", batch)
    carry, outputs = assert_same(models, inputs, start)[0]
    assert carry.shape == (*batch, UNITS)
    assert outputs.shape == (*shape, UNITS)


def test_unroll():
    assert_same(both(lambda: make_cell("SimpleCell"), unroll=2), random_inputs())
    assert_same(both(lambda: make_cell("SimpleCell"), unroll=TIME), random_inputs())
    with pytest.warns(UserWarning, match=r"unroll=6 leaves no loop of the 6 steps"):
        rnnscan.nnx.RNN(make_cell("SimpleCell"), unroll=TIME, memory=rnnscan.Memory(recompute="all"))(random_inputs())


@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(length):
    inputs, carry = random_inputs(BATCH, length, FEATURES), random_carry("LSTMCell")
    models = both(lambda: make_cell("LSTMCell"), return_carry=True)
    expected, actual = (call(model, inputs, initial_carry=carry) for model in models)
    assert_trees_close(actual, expected)


@pytest.mark.parametrize("rngs", [lambda: True, lambda: nnx.Rngs(0, carry=4)], ids=["own", "given"])
def test_a_random_carry_is_the_one_that_flax_draws(rngs):
    """Call after call, from the module's stream and from one given with the call."""

    def make():
        with pytest.warns(UserWarning, match="carry_init is provided"):
            return make_cell("SimpleCell", carry_init=nnx.initializers.normal())

    models = [kind(make(), rngs=rngs()) for kind in (nnx.RNN, rnnscan.nnx.RNN)]
    for in_call in (lambda: None, lambda: None, lambda: nnx.Rngs(5), lambda: nnx.Rngs(5).default):
        expected, actual = (model(random_inputs(), rngs=in_call()) for model in models)
        assert_trees_close(actual, expected)
    flax_count, count = (model.rngs.count[...] for model in models)
    assert count == flax_count > 0


def test_zeros_draw_no_keys():
    model, given = rnnscan.nnx.RNN(make_cell("LSTMCell")), nnx.Rngs(0)
    outputs = model(random_inputs(), rngs=given)
    assert model.rngs.count[...] == given.default.count[...] == 0
    without = rnnscan.nnx.RNN(make_cell("LSTMCell"), rngs=False)
    assert_trees_close(without(random_inputs()), outputs)


class Learned(nnx.RNNCellBase):
    """A cell that learns where it starts."""

    num_feature_axes = 1

    def __init__(self):
        self.inner = make_cell("SimpleCell")
        self.start = nnx.Param(jnp.arange(float(UNITS)))

    def __call__(self, carry, inputs):
        return self.inner(carry, inputs)

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.broadcast_to(self.start[...], (*input_shape[:-1], UNITS))


def test_a_learned_carry_has_a_gradient():
    _, gradients, _ = assert_same(both(Learned), random_inputs())
    assert np.abs(gradients["cell"]["start"]).min() > 0


def row_of(tree, row):
    return jax.tree.map(lambda leaf: leaf[row], tree)


def test_a_row_of_length_0_ends_where_it_started():
    """And one whose length is above T ends after T steps."""
    model = rnnscan.nnx.RNN(make_cell("LSTMCell"), return_carry=True)
    start = random_carry("LSTMCell")
    carry, outputs = call(model, random_inputs(), initial_carry=start, seq_lengths=jnp.array([0, TIME + 3, 2]))
    assert_trees_close(row_of(carry, 0), row_of(start, 0))
    for row, length in ((1, TIME), (2, 2)):
        expected, _ = call(model, random_inputs()[row, :length], initial_carry=row_of(start, row))
        assert_trees_close(row_of(carry, row), expected)
    assert_trees_close(outputs, call(model, random_inputs(), initial_carry=start)[1])


def test_a_carry_with_a_python_number():
    class Counting(nnx.SimpleCell):
        def __call__(self, carry, x):
            hidden, number = carry
            hidden, y = super().__call__(hidden, x)
            return (hidden, number + 1), y + number

        def initialize_carry(self, shape, rngs=None):
            return super().initialize_carry(shape, rngs), 0.0

    cell = Counting(FEATURES, UNITS, dtype=jnp.float64, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    expected = nnx.RNN(cell, return_carry=True)(random_inputs())
    for start in (None, (jnp.zeros((BATCH, UNITS)), 0.0)):
        assert_trees_close(rnnscan.nnx.RNN(cell, return_carry=True)(random_inputs(), initial_carry=start), expected)


def test_exported_for_any_number_of_rows_and_steps():
    model = rnnscan.nnx.RNN(make_cell("GRUCell"), return_carry=True, reverse=True)
    graphdef, state = nnx.split(model)
    run = jax.jit(lambda inputs, lengths: nnx.merge(graphdef, state)(inputs, seq_lengths=lengths))
    rows, steps = jax.export.symbolic_shape("rows, steps")
    inputs = random_inputs()
    types = jax.ShapeDtypeStruct((rows, steps, FEATURES), inputs.dtype), jax.ShapeDtypeStruct((rows,), LENGTHS.dtype)
    assert_trees_close(jax.export.export(run)(*types).call(inputs, LENGTHS), run(inputs, LENGTHS))


def test_lengths_above_the_longest_flip_all_steps():
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"), reverse=True)
    outputs = call(model, random_inputs(), seq_lengths=jnp.full(BATCH, TIME + 2))
    assert_trees_close(outputs, call(model, random_inputs()))


def test_lengths_of_several_batch_axes():
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"), return_carry=True, reverse=True, keep_order=True)
    inputs, lengths = random_inputs(2, 3, TIME, FEATURES), jnp.array([[1, 2, 3], [4, 5, 6]])
    carry, outputs = call(model, inputs, seq_lengths=lengths)
    expected = call(model, inputs.reshape(6, TIME, FEATURES), seq_lengths=lengths.reshape(-1))
    assert_trees_close((carry.reshape(6, -1), outputs.reshape(6, TIME, -1)), expected)


@pytest.mark.core("Flax modules")
@pytest.mark.parametrize(("reverse", "time_major"), [(False, False), (True, True)])
def test_a_reset_starts_a_new_document(reverse, time_major):
    """Rows of two documents, each of which comes out as if it were alone."""
    model = rnnscan.nnx.RNN(make_cell("LSTMCell"), reverse=reverse, keep_order=True, return_carry=True)
    swap = (lambda array: jnp.swapaxes(array, 0, 1)) if time_major else (lambda array: array)
    start, inputs, first_steps = random_carry("LSTMCell"), random_inputs(), [2, 4, 2]
    reset = jnp.arange(TIME) == jnp.array(first_steps)[:, None]
    resets = {"reset": swap(reset), "reset_to": start}
    carry, outputs = call(model, swap(inputs), initial_carry=start, time_major=time_major, **resets)
    for row, first in enumerate(first_steps):
        alone = row_of(start, row)
        documents = [call(model, part, initial_carry=alone) for part in (inputs[row, :first], inputs[row, first:])]
        expected = jnp.concatenate([ys for _, ys in documents])
        np.testing.assert_allclose(swap(outputs)[row], expected, rtol=1e-12, atol=1e-12)
        assert_trees_close(row_of(carry, row), documents[0 if reverse else 1][0])


def test_a_reset_goes_back_to_the_carry_that_is_given_for_it():
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"))
    reset = jnp.zeros((BATCH, TIME), bool).at[:, 2].set(True)
    start, there = random_carry("SimpleCell"), random_carry("SimpleCell") + 1
    outputs = call(model, random_inputs(), initial_carry=start, reset=reset, reset_to=there)
    assert_trees_close(outputs[:, 2:], call(model, random_inputs()[:, 2:], initial_carry=there))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_reset_in_the_padding_does_not_happen(reverse):
    """The document in the padding does not begin, and in reverse it is not that which ends."""
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"), return_carry=True, reverse=reverse, keep_order=True)
    reset = jnp.zeros((BATCH, TIME), bool).at[0, 2:].set(True)
    carry, outputs = call(model, random_inputs(), seq_lengths=LENGTHS, reset=reset)
    expected_carry, expected = call(model, random_inputs(), seq_lengths=LENGTHS)
    assert_trees_close((carry, outputs[0, :2]), (expected_carry, expected[0, :2]))


def test_truncate_cuts_the_gradient():
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"), truncate=2)
    gradient = jax.grad(lambda inputs: model(inputs)[:, 4:].sum())(random_inputs())
    assert np.abs(gradient[:, :4]).max() == 0 < np.abs(gradient[:, 4:]).min()
