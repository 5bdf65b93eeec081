"""The state of a cell: the same tree as in flax.nnx, and changed by the steps of a sequence as Flax changes it."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
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
    fill,
    make_cell,
    random_carry,
    random_inputs,
    run,
)
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


def pure_state(module):
    """All of a module's state as arrays, the keys among them as numbers."""

    def numbers(leaf):
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return jax.tree.map(numbers, nnx.to_pure_dict(nnx.state(module)))


class Noisy(nnx.RNNCellBase):
    """A cell with dropout and with statistics of its outputs."""

    num_feature_axes = 1

    def __init__(self, rngs):
        self.inner = make_cell("SimpleCell", rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(UNITS, param_dtype=jnp.float64, rngs=rngs)
        # As wide as the parameters, or Flax warns of what it puts into them.
        nnx.update(self.norm, jax.tree.map(lambda leaf: leaf.astype(float), nnx.state(self.norm)))

    def __call__(self, carry, inputs):
        carry, y = self.inner(self.dropout(carry), inputs)
        return carry, self.norm(y)

    def initialize_carry(self, input_shape, rngs=None):
        return self.inner.initialize_carry(input_shape, rngs)


class Telling(nnx.RNNCellBase):
    """A cell that sows what it computes."""

    num_feature_axes = 1

    def __init__(self):
        self.inner = make_cell("SimpleCell")

    def __call__(self, carry, inputs):
        carry, y = self.inner(carry, inputs)
        self.sow(nnx.Intermediate, "hidden", y)
        return carry, y

    def initialize_carry(self, input_shape, rngs=None):
        return self.inner.initialize_carry(input_shape, rngs)


class Stepwise(nnx.RNNCellBase):
    """A cell with a weight for each step, and a sum for each step, along the axes 1 and 0."""

    num_feature_axes = 1

    def __init__(self):
        self.kernel = nnx.Param(random_inputs(FEATURES, TIME, UNITS))
        self.total = nnx.Variable(jnp.arange(float(TIME)))

    def __call__(self, carry, inputs):
        self.total[...] = self.total[...] + carry.sum()
        carry = jnp.tanh(inputs @ self.kernel[...] + carry)
        return carry, carry

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.ones((*input_shape[:-1], UNITS))


class Tied(nnx.RNNCellBase):
    """A cell with one matrix at two places."""

    num_feature_axes = 1

    def __init__(self):
        self.once = nnx.Linear(UNITS, UNITS, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        self.twice = self.once

    def __call__(self, carry, inputs):
        carry = jnp.tanh(self.twice(jnp.sin(self.once(carry))) + inputs.sum(axis=-1, keepdims=True))
        return carry, carry

    def initialize_carry(self, input_shape, rngs=None):
        return jnp.ones((*input_shape[:-1], UNITS))


@pytest.mark.parametrize("name", CELLS)
def test_the_state_has_the_same_tree(name):
    """Which is what a checkpoint must have to load."""
    for options in ({}, {"rngs": False}, {"rngs": nnx.Rngs(3)}):
        states = [
            nnx.state(kind(CELLS[name](3, 4, rngs=nnx.Rngs(0)), **options)) for kind in (nnx.RNN, rnnscan.nnx.RNN)
        ]
        assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), states[0]) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), states[1]
        )


def test_the_state_of_one_loads_into_the_other(tmp_path):
    """Both ways: as a state, as a pure dictionary, and from an orbax checkpoint."""
    inputs = random_inputs()
    models = both(lambda: make_cell("SimpleCell"))
    for saved, loaded in (models, models[::-1]):
        path = tmp_path / type(saved).__module__
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, nnx.to_pure_dict(nnx.state(saved, nnx.Param)))
            checkpointer.wait_until_finished()
            restored = checkpointer.restore(path, nnx.to_pure_dict(nnx.state(loaded, nnx.Param)))
        for state in (nnx.state(saved), nnx.to_pure_dict(nnx.state(saved)), restored):
            nnx.update(loaded, fill(nnx.state(loaded, nnx.Param), seed=9))
            assert np.abs(call(loaded, inputs) - call(saved, inputs)).max() > 0.1
            nnx.update(loaded, state)
            assert_trees_close(call(loaded, inputs), call(saved, inputs))


@pytest.mark.parametrize(
    "options",
    variants(
        {
            "carried": {},
            "keys broadcast": {"broadcast_rngs": "dropout"},
            "state broadcast": {
                "state_axes": nnx.StateAxes({nnx.BatchStat: None, nnx.Param: None, ...: nnx.Carry}),
                "reverse": True,
            },
        },
        ["carried"],
    ),
)
def test_dropout_and_statistics(options):
    """The same masks for the same keys, the same statistics, in two calls one after the other."""
    models = both(lambda: Noisy(nnx.Rngs(0, dropout=3)), return_carry=True, **options)
    lengths = jnp.array([2, TIME, 1])  # of which statistics take no notice
    outputs = [assert_same(models, random_inputs(), seq_lengths=lengths)[0][1] for _ in range(2)]
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
    expected, actual = map(pure_state, models)
    expected["rngs"], actual["rngs"] = None, None  # the streams for initial carries, of which zeros draw nothing
    assert_trees_close(actual, expected, tolerance=1e-9)
    assert actual["cell"]["dropout"]["rngs"]["count"] > 0


class Mask(nnx.RNNCellBase):
    """A cell whose output is its mask."""

    num_feature_axes = 1

    def __init__(self):
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, carry, inputs):
        return carry, self.dropout(jnp.ones_like(inputs))

    def initialize_carry(self, input_shape, rngs=None):
        return ()


def test_broadcast_keys_drop_the_same_units_at_all_steps():
    broadcast = rnnscan.nnx.RNN(Mask(), broadcast_rngs="default")
    masks = [np.asarray(call(broadcast, random_inputs())) for _ in range(2)]
    for mask in masks:
        assert (mask == mask[:, :1]).all()
    assert (masks[0] != masks[1]).any()
    mask = np.asarray(call(rnnscan.nnx.RNN(Mask()), random_inputs()))
    assert (mask != mask[:, :1]).any()


def test_dropout_and_statistics_in_evaluation():
    models = both(lambda: Noisy(nnx.Rngs(0)))
    for model in models:
        model.eval()
    assert_same(models, random_inputs())
    before = pure_state(models[1])
    jax.grad(lambda inputs: models[1](inputs).sum())(random_inputs())  # nothing changes, so it may be closed over
    assert_trees_close(pure_state(models[1]), before)


def test_random_choices_are_the_same_when_computed_again():
    """On the backward pass, whatever is kept, and whichever engine runs."""
    choices = [{}, {"memory": rnnscan.Memory(segment=2)}, {"engine": "lax"}]
    models = [rnnscan.nnx.RNN(Noisy(nnx.Rngs(0, dropout=3)), **choice) for choice in choices]
    expected, *others = [run(model, random_inputs()) for model in models]
    for other in others:
        assert_trees_close(other, expected, tolerance=1e-9)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_what_steps_sow_is_stacked():
    """In a second call too, whose steps sow beside what the first one's did."""
    models = both(Telling, state_axes=nnx.StateAxes({nnx.Intermediate: 0, ...: nnx.Carry}))
    for count in (1, 2):
        assert_trees_close(models[1](random_inputs()), models[0](random_inputs()))
        sown = [nnx.to_pure_dict(nnx.state(model, nnx.Intermediate)) for model in models]
        assert_trees_close(sown[1], sown[0])
        assert [leaf.shape for leaf in sown[1]["cell"]["hidden"]] == [(TIME, BATCH, UNITS)] * count


def test_what_steps_sow_is_captured():
    model = rnnscan.nnx.RNN(Telling(), state_axes={nnx.Intermediate: 0, ...: nnx.Carry})
    outputs, captured = nnx.capture(model, nnx.Intermediate)(random_inputs())
    (hidden,) = nnx.to_pure_dict(captured)["cell"]["hidden"]
    np.testing.assert_array_equal(jnp.swapaxes(hidden, 0, 1), outputs)


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"reverse": True, "keep_order": True}], ids=str)
def test_variables_with_an_axis_of_steps(options):
    models = both(Stepwise, state_axes=nnx.StateAxes({nnx.Param: 1, ...: 0}), **options)
    assert_same(models, random_inputs())
    states = [nnx.to_pure_dict(nnx.state(model.cell)) for model in models]
    assert_trees_close(states[1], states[0])


def test_shared_variables():
    models = both(Tied)
    _, gradients, _ = assert_same(models, random_inputs())
    assert list(gradients["cell"]) == ["once"]


def test_a_cell_of_two_rnns_has_one_set_of_parameters():
    def model(kind):
        cell = make_cell("SimpleCell")
        return nnx.List([kind(cell), kind(cell, reverse=True)])

    class Twice(nnx.Module):
        def __init__(self, kind):
            self.rnns = model(kind)

        def __call__(self, inputs, *, initial_carry):
            return [rnn(inputs, initial_carry=initial_carry) for rnn in self.rnns]

    _, gradients, _ = assert_same((Twice(nnx.RNN), Twice(rnnscan.nnx.RNN)), random_inputs(), random_carry("SimpleCell"))
    assert len(jax.tree.leaves(gradients)) == 3
