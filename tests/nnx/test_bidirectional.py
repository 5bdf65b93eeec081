"""rnnscan.nnx.Bidirectional computes what flax.nnx.Bidirectional does, run beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
import rnnscan.nnx
from nnx_pairs import BATCH, FEATURES, TIME, assert_same, call, fill, make_cell, random_carry, random_inputs
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

LENGTHS = jnp.array([2, TIME, 1])


def make(library, name="SimpleCell", rnn=None, **options):
    """With other weights backwards than forwards."""
    cells = [make_cell(name), make_cell(name)]
    nnx.update(cells[1], fill(nnx.state(cells[1], nnx.Param), seed=5))
    return library.Bidirectional(*map(rnn or library.RNN, cells), **options)


def pair(*arguments, **options):
    return make(nnx, *arguments, **options), make(rnnscan.nnx, *arguments, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"merge_fn": lambda forward, backward: forward * backward, "return_carry": True, "time_major": True},
    ],
    ids=["none", "all"],
)
def test_options(options):
    inputs = random_inputs(*((TIME, BATCH) if "time_major" in options else (BATCH, TIME)), FEATURES)
    carry = (random_carry("SimpleCell"), random_carry("SimpleCell") + 1)
    assert_same(pair(**options), inputs, carry, seq_lengths=LENGTHS)


def test_options_of_a_call():
    models = pair("SimpleCell", return_carry=True)
    (carry, outputs), *_ = assert_same(models, random_inputs(TIME, BATCH, FEATURES), time_major=True)
    assert jax.tree.structure(carry) == jax.tree.structure((random_carry("SimpleCell"),) * 2)
    assert_trees_close(
        call(models[1], random_inputs(TIME, BATCH, FEATURES), time_major=True, return_carry=False), outputs
    )


def test_the_state_is_the_same():
    flax_model, model = pair()
    assert jax.tree.structure(nnx.state(flax_model)) == jax.tree.structure(nnx.state(model))
    expected = call(flax_model, random_inputs())
    nnx.update(model, fill(nnx.state(model, nnx.Param), seed=9))
    nnx.update(model, nnx.state(flax_model))
    assert_trees_close(call(model, random_inputs()), expected, tolerance=1e-9)


def test_random_carries_are_those_that_flax_draws():
    def make(library):
        with pytest.warns(UserWarning, match="carry_init is provided"):
            cells = [make_cell("SimpleCell", carry_init=nnx.initializers.normal()) for _ in range(2)]
        return library.Bidirectional(*map(library.RNN, cells), return_carry=True)

    models = make(nnx), make(rnnscan.nnx)
    for rngs in (lambda: None, lambda: nnx.Rngs(7)):
        expected, actual = (model(random_inputs(), rngs=rngs()) for model in models)
        assert_trees_close(actual, expected)


def test_the_same_rnn_in_both_directions_shares_its_parameters():
    def make(library):
        rnn = library.RNN(make_cell("SimpleCell"))
        return library.Bidirectional(rnn, rnn)

    _, gradients, _ = assert_same((make(nnx), make(rnnscan.nnx)), random_inputs(), seq_lengths=LENGTHS)
    assert list(gradients) == ["backward_rnn"]  # the first by name


def test_rnns_of_flax_are_parts_too():
    mixed = make(rnnscan.nnx, rnn=nnx.RNN)
    assert_trees_close(call(mixed, random_inputs()), call(make(nnx), random_inputs()))
    with pytest.raises(TypeError, match="unexpected keyword argument 'reset'"):
        mixed(random_inputs(), reset=jnp.zeros((BATCH, TIME), bool))


def test_gradients_over_a_closure():
    model = make(rnnscan.nnx)
    gradient = jax.grad(lambda inputs: model(inputs).sum())(random_inputs())
    assert np.abs(gradient).min() > 0


def test_documents_are_kept_apart():
    """Each comes out as if it were alone, in both directions."""
    model, inputs = make(rnnscan.nnx), random_inputs()
    reset = jnp.zeros((BATCH, TIME), bool).at[:, 2].set(True)
    expected = jnp.concatenate([call(model, inputs[:, :2]), call(model, inputs[:, 2:])], axis=1)
    np.testing.assert_allclose(call(model, inputs, reset=reset), expected, rtol=1e-12, atol=1e-12)


def test_random_choices_of_cells_of_rnnscan():
    """Each direction makes its own."""
    cell = rnnscan.nnx.Cell(rs.dropout(rs.cells.RNN(4), rate=0.5), FEATURES, rngs=nnx.Rngs(0))
    forward, backward = rnnscan.nnx.RNN(cell), rnnscan.nnx.RNN(cell, reverse=True, keep_order=True)
    key, inputs = jax.random.key(0), random_inputs()
    outputs = call(rnnscan.nnx.Bidirectional(forward, backward), inputs, key=key)
    keys = jax.random.split(key)
    expected = [call(forward, inputs, key=keys[0]), call(backward, inputs, key=keys[1])]
    assert_trees_close(outputs, jnp.concatenate(expected, axis=-1))
