"""linen.Bidirectional is flax.linen.Bidirectional, run side by side; resets are those of both directions."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from flax_cells import (
    BATCH,
    HIDDEN_SIZE,
    INPUT_SIZE,
    KEYS,
    LENGTHS,
    PLAIN_KERNEL,
    TIME,
    assert_same,
    assert_same_start,
    draw,
    gradients,
    values,
    variables_of,
)
from rnnscan import linen
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


def lstm():
    return nn.LSTMCell(HIDDEN_SIZE, param_dtype=jnp.float64, **PLAIN_KERNEL)


def simple():
    return nn.SimpleCell(HIDDEN_SIZE, param_dtype=jnp.float64, carry_init=nn.initializers.normal(0.5), **PLAIN_KERNEL)


def pair(**options):
    flax = nn.Bidirectional(nn.RNN(lstm()), nn.RNN(simple()), **options)
    return flax, linen.Bidirectional(linen.RNN(lstm()), linen.RNN(simple()), **options)


def inputs():
    return draw((BATCH, TIME, INPUT_SIZE))


def test_arguments_are_those_of_flax():
    for function in (lambda model: model, lambda model: model.__call__):
        flax, own = (inspect.signature(function(model)).parameters for model in (nn.Bidirectional, linen.Bidirectional))
        assert [name for name in own if not name.startswith("reset")] == list(flax)
        assert all(own[name].default == parameter.default for name, parameter in flax.items())


def test_variables_start_the_same():
    flax = nn.Bidirectional(nn.RNN(simple()), nn.RNN(simple()))
    assert_same_start(flax, linen.Bidirectional(linen.RNN(simple()), linen.RNN(simple())), inputs())


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"return_carry": True}, {"seq_lengths": jnp.array(LENGTHS), "init_key": 3}),
        ({"merge_fn": lambda forward, backward: forward * 2 - backward}, {"return_carry": True}),
        ({}, {"reverse": True, "keep_order": False}),
    ],
    ids=["lengths", "merge", "what it does not use"],
)
def test_options(options, call):
    call = {name: jax.random.key(value) if name == "init_key" else value for name, value in call.items()}
    flax, own = pair(**options)
    variables = variables_of(flax, inputs())
    expected = values(flax, variables, inputs(), **call)
    assert_trees_close(values(own, variables, inputs(), **call), expected, tolerance=1e-9)


def test_time_major_and_initial_carries():
    flax, own = pair(time_major=True, return_carry=True)
    carry = tuple(draw((BATCH, HIDDEN_SIZE), seed=seed) for seed in range(3))
    assert_same(flax, own, jnp.moveaxis(inputs(), 1, 0), ((carry[0], carry[1]), carry[2]))


def test_one_rnn_for_both_directions_shares_its_parameters():
    class Shared(nn.Module):
        both: type
        rnn: type

        @nn.compact
        def __call__(self, inputs):
            rnn = self.rnn(simple())
            return self.both(rnn, rnn)(inputs)

    flax, own = Shared(nn.Bidirectional, nn.RNN), Shared(linen.Bidirectional, linen.RNN)
    assert len(variables_of(own, inputs())["params"]) == 1
    assert_same(flax, own, inputs())


def test_in_the_place_of_an_rnn():
    """One around others, of which one direction is Flax's own RNN and one a Bidirectional."""
    flax = nn.Bidirectional(nn.RNN(lstm()), nn.Bidirectional(nn.RNN(simple()), nn.RNN(simple())))
    own = linen.Bidirectional(nn.RNN(lstm()), linen.Bidirectional(linen.RNN(simple()), linen.RNN(simple())))
    variables = variables_of(flax, inputs())
    expected = values(flax, variables, inputs(), return_carry=True)
    assert_trees_close(values(own, variables, inputs(), return_carry=True), expected, tolerance=1e-9)


def test_cells_of_rnnscan_give_what_its_net_does():
    cells = rs.cells.LSTM(HIDDEN_SIZE, param_dtype=jnp.float64), rs.cells.GRU(2, param_dtype=jnp.float64)
    net, model = rs.bidirectional(*cells), linen.Bidirectional(*map(linen.RNN, cells), return_carry=True)
    variables = variables_of(model, inputs())
    params = {direction: variables["params"][f"{direction}_rnn"]["cell"] for direction in ("forward", "backward")}
    reset = jnp.asarray(np.random.default_rng(1).random((BATCH, TIME)) < 0.4)
    # Outputs are compared without lengths, because Flax's at padded steps are not zero.
    carry, outputs = jax.jit(lambda p, x: net(p, x, reset=reset.T))(params, jnp.moveaxis(inputs(), 1, 0))
    expected = carry, jnp.moveaxis(outputs, 0, 1)
    assert_trees_close(values(model, variables, inputs(), reset=reset), expected, tolerance=1e-9)
    lengths = jnp.array(LENGTHS)
    expected, _ = jax.jit(lambda p, x: net(p, x, reset=reset.T, seq_lengths=lengths))(
        params, jnp.moveaxis(inputs(), 1, 0)
    )
    carry, _ = values(model, variables, inputs(), reset=reset, seq_lengths=lengths)
    assert_trees_close(carry, expected, tolerance=1e-9)


def test_an_rnn_of_flax_refuses_resets():
    model = linen.Bidirectional(linen.RNN(simple()), nn.RNN(simple()))
    with pytest.raises(TypeError, match="reset"):
        jax.eval_shape(lambda: model.init(KEYS, inputs(), reset=jnp.zeros((BATCH, TIME), bool)))


@pytest.mark.slow  # tests/nets has it for the net.
def test_gradients_of_engines_agree():
    def model(engine):
        return linen.Bidirectional(
            linen.RNN(lstm(), engine=engine), linen.RNN(simple(), engine=engine), return_carry=True
        )

    variables = variables_of(model("lax"), inputs())
    call = {"seq_lengths": jnp.array(LENGTHS), "reset": jnp.zeros((BATCH, TIME), bool).at[:, 2].set(True)}
    expected = gradients(model("lax"), variables, inputs(), **call)
    assert_trees_close(gradients(model("fission"), variables, inputs(), **call), expected, tolerance=1e-9)
