"""What cells keep in variables and draw from rngs is what it is in flax.linen.RNN, run side by side."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.typing import In, Out

from flax_cells import (
    BATCH,
    HIDDEN_SIZE,
    INPUT_SIZE,
    KEYS,
    PLAIN_KERNEL,
    TIME,
    draw,
    gradients,
    values,
    variables_of,
)
from rnnscan import linen
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

FLOAT = jnp.float64


class HiddenCell(nn.RNNCellBase):
    """A cell whose carry is one array."""

    features: int = HIDDEN_SIZE

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros((*input_shape[:-1], self.features), FLOAT)

    @property
    def num_feature_axes(self):
        return 1

    def dense(self, carry, inputs):
        return nn.Dense(self.features, param_dtype=FLOAT, name="dense")(jnp.concatenate([carry, inputs], axis=-1))


class DroppingCell(HiddenCell):
    """Two sites of dropout, one of them from an rng of its own."""

    @nn.compact
    def __call__(self, carry, inputs):
        hidden = nn.Dropout(0.4, deterministic=False, name="first")(jnp.tanh(self.dense(carry, inputs)))
        noise = jax.random.normal(self.make_rng("noise"), hidden.shape, FLOAT)
        hidden = nn.Dropout(0.5, deterministic=False, name="second")(hidden + noise)
        return hidden, (hidden, noise)


class NormalizingCell(HiddenCell):
    """Batch statistics, averaged over steps, and its hidden state sown."""

    train: bool = True

    @nn.compact
    def __call__(self, carry, inputs):
        norm = nn.BatchNorm(use_running_average=not self.train, momentum=0.8, param_dtype=FLOAT, name="norm")
        hidden = jnp.tanh(norm(self.dense(carry, inputs)))
        self.sow("intermediates", "hidden", hidden)
        return hidden, hidden


class RememberingCell(HiddenCell):
    """A variable that a step reads, one that it writes, and one that it does both with."""

    @nn.compact
    def __call__(self, carry, inputs):
        given = self.variable("given", "scale", jnp.ones, ())
        written = self.variable("written", "mean", jnp.zeros, ())
        both = self.variable("both", "offset", jnp.zeros, (HIDDEN_SIZE,))
        # What another run wrote is not seen: it is zero before it is written.
        hidden = jnp.tanh(self.dense(carry, inputs) * given.value + both.value + written.value)
        if not self.is_initializing():
            written.value = hidden.mean()
            both.value = both.value + 2 * hidden.mean(0)
        return hidden, hidden


def rnns(cell, **options):
    return nn.RNN(cell, **options), linen.RNN(cell, **options)


def inputs():
    return draw((BATCH, TIME, INPUT_SIZE))


def assert_same_values(flax, own, variables, **call):
    expected = values(flax, variables, inputs(), **call)
    assert_trees_close(values(own, variables, inputs(), **call), expected, tolerance=1e-9)
    return expected


@pytest.mark.parametrize(
    ("splits", "reverse"), variants({"both": ((True, True), True), "one": ((False, True), False)}, ["one"])
)
def test_random_choices_of_a_cell_are_the_same(splits, reverse):
    split_rngs = {"params": False, "dropout": splits[0], "noise": splits[1]}
    flax, own = rnns(DroppingCell(), split_rngs=split_rngs, reverse=reverse)
    rngs = {**KEYS, "noise": jax.random.key(2)}
    started = [jax.jit(model.init_with_output)(rngs, inputs()) for model in (flax, own)]
    assert_trees_close(started[1], started[0], tolerance=1e-9)

    def loss(model):
        def of(variables):
            outputs, noise = model.apply(variables, inputs(), rngs=rngs)
            return (outputs**3).sum() + (noise * outputs).sum(), (outputs, noise)

        return jax.jit(jax.grad(of, has_aux=True))(started[0][1])

    expected = loss(flax)
    assert_trees_close(loss(own), expected, tolerance=1e-9)
    outputs, noise = expected[1]
    assert (outputs == 0).any()
    assert not (noise[:, 0] == noise[:, 1]).any()
    assert bool(((outputs[:, 0] == 0) == (outputs[:, 1] == 0)).all()) != splits[0]


def test_random_choices_of_a_cell_that_is_used_twice_differ():
    class Model(nn.Module):
        rnn_type: type

        @nn.compact
        def __call__(self, inputs):
            cell = DroppingCell()
            options = {"split_rngs": {"params": False, "dropout": True, "noise": False}}
            return [self.rnn_type(cell, **options)(inputs)[0] for _ in range(2)]

    rngs = {**KEYS, "noise": jax.random.key(2)}
    expected, outputs = (jax.jit(Model(rnn).init_with_output)(rngs, inputs()) for rnn in (nn.RNN, linen.RNN))
    assert_trees_close(outputs, expected, tolerance=1e-9)
    assert not (outputs[0][0] == outputs[0][1]).all()


def normalizing_variables():
    started = variables_of(nn.RNN(NormalizingCell(), variable_broadcast=["params", "batch_stats"]), inputs())
    return jax.tree.map(lambda leaf: leaf.astype(FLOAT), started)  # BatchNorm starts its averages in float32.


def test_batch_statistics_go_from_step_to_step_and_what_is_sown_is_stacked():
    options = {"variable_carry": "batch_stats", "variable_axes": {"intermediates": 1}, "return_carry": True}
    flax, own = rnns(NormalizingCell(), **options)
    variables = normalizing_variables()
    call = {"mutable": ["batch_stats", "intermediates"]}
    expected = gradients(flax, variables, inputs(), **call)
    assert_trees_close(gradients(own, variables, inputs(), **call), expected, tolerance=1e-9)
    changed = expected[0][1]
    assert (changed["batch_stats"]["cell"]["norm"]["mean"] != 0).all()
    assert changed["intermediates"]["cell"]["hidden"][0].shape == (BATCH, TIME, HIDDEN_SIZE)


def test_where_variables_start_is_the_same():
    flax, own = rnns(NormalizingCell(), variable_broadcast=["params", "batch_stats"])
    expected, variables = (jax.jit(model.init)(KEYS, inputs()) for model in (flax, own))
    assert_trees_close(variables, expected)


def test_immutable_batch_statistics_stay():
    """A deviation: Flax refuses collections in `variable_carry` that are not mutable."""
    own = linen.RNN(NormalizingCell(train=False), variable_carry="batch_stats")
    flax = nn.RNN(NormalizingCell(train=False), variable_broadcast=["params", "batch_stats"])
    variables = jax.tree.map(jnp.abs, normalizing_variables())
    assert_same_values(flax, own, variables)


@pytest.mark.parametrize("reverse", variants([False, True], [True]))
def test_parameters_of_each_step(reverse):
    """Step by step in the order of the run, not in that of the inputs."""
    options = {"variable_axes": {"params": 1}, "variable_broadcast": False, "split_rngs": {"params": True}}
    flax, own = rnns(nn.SimpleCell(HIDDEN_SIZE, param_dtype=FLOAT, **PLAIN_KERNEL), reverse=reverse, **options)
    expected, variables = (jax.jit(model.init)(KEYS, inputs()) for model in (flax, own))
    assert_trees_close(variables, expected)
    assert variables["params"]["cell"]["h"]["kernel"].shape == (HIDDEN_SIZE, TIME, HIDDEN_SIZE)
    assert_same_values(flax, own, variables)


@pytest.mark.parametrize("reverse", variants([False, True], [True]))
def test_variables_that_are_only_read_or_only_written(reverse):
    options = {"variable_axes": {"given": In(0), "written": Out(0), "both": 1}, "reverse": reverse}
    flax, own = rnns(RememberingCell(), **options)
    cell = variables_of(nn.RNN(RememberingCell(), variable_broadcast=True), inputs())
    variables = {
        "params": cell["params"],
        "given": {"cell": {"scale": draw((TIME,), seed=5)}},
        "both": {"cell": {"offset": draw((HIDDEN_SIZE, TIME), seed=6)}},
        "written": {"cell": {"mean": draw((TIME,), seed=7)}},
    }
    _, changed = assert_same_values(flax, own, variables, mutable=["written", "both"])
    assert changed["written"]["cell"]["mean"].shape == (TIME,)
    assert changed["both"]["cell"]["offset"].shape == (HIDDEN_SIZE, TIME)


def test_what_every_submodule_returns_can_be_captured():
    flax, own = rnns(nn.LSTMCell(HIDDEN_SIZE, param_dtype=FLOAT), variable_axes={"intermediates": 0})
    variables = variables_of(flax, inputs())
    expected = assert_same_values(flax, own, variables, capture_intermediates=True, mutable=["intermediates"])
    np.testing.assert_array_equal(expected[1]["intermediates"]["__call__"][0], expected[0])


def test_boxed_parameters_keep_their_boxes():
    recurrent_init = PLAIN_KERNEL["recurrent_kernel_init"]
    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "units"))
    flax, own = rnns(
        nn.SimpleCell(HIDDEN_SIZE, param_dtype=FLOAT, kernel_init=init, recurrent_kernel_init=recurrent_init)
    )
    expected, variables = (jax.jit(model.init)(KEYS, inputs()) for model in (flax, own))
    assert_trees_close(variables, expected)
    assert isinstance(variables["params"]["cell"]["i"]["kernel"], nn.Partitioned)
    assert_same_values(flax, own, variables)
