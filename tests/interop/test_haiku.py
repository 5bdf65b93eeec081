"""Nets of Haiku's cores compute what the cores compute, run beside rnnscan."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rnnscan import interop


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 2, 3, 4
CORES = {
    "LSTM": ("LSTM", lambda name=None: hk.LSTM(HIDDEN_SIZE, name=name)),
    "GRU": ("GRU", lambda name=None: hk.GRU(HIDDEN_SIZE, name=name)),
    "VanillaRNN": ("VanillaRNN", lambda name=None: hk.VanillaRNN(HIDDEN_SIZE, name=name)),
    "VanillaRNN_one_bias": ("VanillaRNN", lambda name=None: hk.VanillaRNN(HIDDEN_SIZE, double_bias=False, name=name)),
}


def to_haiku_state(carry):
    return hk.LSTMState(*carry) if len(carry) == 2 else carry[0]


def build(make):
    """Haiku's unrolled core, its params with random weights and biases, inputs and a carry of rnnscan."""
    random = np.random.default_rng(0)
    unrolled = hk.without_apply_rng(hk.transform(lambda xs, state: hk.dynamic_unroll(make(), xs, state)))
    xs = jnp.asarray(random.normal(size=(TIME, BATCH, INPUT_SIZE)))
    states = 2 if unrolled_has_two_states(make) else 1
    carry = tuple(jnp.asarray(random.normal(size=(BATCH, HIDDEN_SIZE))) for _ in range(states))
    shapes = jax.eval_shape(unrolled.init, jax.random.key(0), xs, to_haiku_state(carry))
    params = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), shapes)
    return unrolled.apply, params, xs, carry


def unrolled_has_two_states(make):
    initial = hk.without_apply_rng(hk.transform(lambda: make().initial_state(BATCH))).apply({})
    return isinstance(initial, hk.LSTMState)


def expected_of(apply, params, xs, carry):
    ys, state = apply(params, xs, to_haiku_state(carry))
    return tuple(state) if isinstance(state, hk.LSTMState) else (state,), ys


@pytest.mark.parametrize("name", [None, "agent_core"])
@pytest.mark.parametrize(("kind", "make"), CORES.values(), ids=CORES)
def test_the_net_of_a_core_computes_what_the_core_does(kind, make, name, assert_trees_close):
    apply, params, xs, carry = build(lambda: make(name))
    beside = {} if name is None else {"linear": {"w": jnp.ones((2, 2)), "steps": jnp.arange(3)}}
    net, of_net = interop.from_haiku(params | beside, kind, name=name)
    expected = jax.jit(expected_of, static_argnums=0)(apply, params, xs, carry)
    assert_trees_close(jax.jit(net)(of_net, xs, carry=carry), expected, tolerance=1e-9)


@pytest.mark.parametrize(("kind", "make"), CORES.values(), ids=CORES)
def test_a_core_takes_the_parameters_of_a_net(kind, make, assert_trees_close):
    apply, params, xs, carry = build(make)
    back = interop.to_haiku(*interop.from_haiku(params, kind))
    assert_trees_close(expected_of(apply, back, xs, carry), expected_of(apply, params, xs, carry), tolerance=1e-9)
    if kind != "VanillaRNN":  # Its two biases become their sum and zeros.
        assert_trees_close(back, params, tolerance=1e-14)


@pytest.mark.parametrize(("kind", "make"), CORES.values(), ids=CORES)
def test_parameters_of_haiku_get_their_gradients(kind, make, assert_trees_close):
    apply, params, xs, carry = build(make)

    def loss(params):
        net, of_net = interop.from_haiku(params, kind)
        return jnp.sum(jnp.sin(net(of_net, xs, carry=carry)[1]))

    def haiku_loss(params):
        return jnp.sum(jnp.sin(apply(params, xs, to_haiku_state(carry))[0]))

    actual, expected = (jax.jit(jax.value_and_grad(function))(params) for function in (loss, haiku_loss))
    assert_trees_close(actual, expected, tolerance=1e-9)


def test_a_core_within_modules_has_a_long_name(assert_trees_close):
    class Agent(hk.Module):
        def __init__(self):
            super().__init__()
            self.core = hk.LSTM(HIDDEN_SIZE)

        def __call__(self, x):
            return self.core(x, self.core.initial_state(BATCH))[0]

    model = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(2)(Agent()(x))))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, INPUT_SIZE)))
    params = model.init(jax.random.key(0), x)
    net, of_net = interop.from_haiku(params, "LSTM", name="agent/~/lstm")
    expected = hk.without_apply_rng(hk.transform(lambda x: Agent()(x))).apply(params, x)
    assert_trees_close(net.step(of_net, x, carry=net.initial_carry(x[None]))[1], expected, tolerance=1e-9)
