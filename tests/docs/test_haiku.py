"""Functions of Haiku run by rs.scan as they are: values and gradients beside lax.scan, and what is kept."""

import haiku as hk
import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.insight import kept_bytes
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 24, 3, 4, 8
CORES = {"LSTM": hk.LSTM, "GRU": hk.GRU}
CHOICES = [rs.Memory(), rs.Memory(segment=5)]


def build(name):
    """A cell as a function, its params with random weights and biases, a carry and inputs, all in float64."""
    step = hk.without_apply_rng(hk.transform(lambda x, state: CORES[name](HIDDEN_SIZE)(x, state)))
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def random(*shape):
        return jax.random.normal(next(keys), shape)

    carry = random(BATCH, HIDDEN_SIZE)
    if name == "LSTM":
        carry = hk.LSTMState(hidden=carry, cell=random(BATCH, HIDDEN_SIZE))
    xs = random(TIME, BATCH, INPUT_SIZE)
    params = jax.tree.map(lambda leaf: 0.5 * random(*leaf.shape), step.init(next(keys), xs[0], carry))

    def cell(params, carry, x):
        return step.apply(params, x, carry)[::-1]

    return cell, params, carry, xs


def weighted(run):
    """A loss of everything that a run returns."""

    def loss(*arguments):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(run(*arguments)))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


@pytest.mark.parametrize("memory", CHOICES, ids=repr)
@pytest.mark.parametrize("name", CORES)
def test_values_and_gradients_are_those_of_lax_scan(name, memory):
    cell, *arguments = build(name)

    def ours(params, carry, xs):
        return rs.scan(cell, params, carry, xs, memory=memory)

    def plain(params, carry, xs):
        return jax.lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)

    actual, expected = jax.jit(ours)(*arguments), jax.jit(plain)(*arguments)
    assert type(actual[0]) is type(expected[0])
    assert_trees_close(actual, expected, tolerance=1e-12)
    assert_trees_close(weighted(ours)(*arguments), weighted(plain)(*arguments), tolerance=1e-9)


@pytest.mark.parametrize("engine", ["fission", "lax"])
def test_only_inputs_and_carries_are_kept(engine):
    cell, params, carry, xs = build("LSTM")
    kept = kept_bytes(lambda xs: rs.scan(cell, params, carry, xs, engine=engine), xs)
    states = 8 * TIME * BATCH * HIDDEN_SIZE
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    # The state c follows from h, so with the engine it is kept at a few steps only.
    most = xs.nbytes + weights + (2.5 if engine == "lax" else 1.5) * states
    assert xs.nbytes + states < kept < most
    plain = kept_bytes(lambda xs: jax.lax.scan(lambda carry, x: cell(params, carry, x), carry, xs), xs)
    assert kept < plain / 2


@pytest.mark.large_loops  # Small ones keep all, names or not.
def test_a_name_in_a_transformed_function_is_known():
    step = hk.without_apply_rng(
        hk.transform(lambda x, hidden: jnp.tanh(rs.name(hk.Linear(HIDDEN_SIZE)(x), "product") + hidden))
    )
    carry, xs = (jnp.zeros((BATCH, HIDDEN_SIZE)),), jnp.ones((TIME, BATCH, INPUT_SIZE))
    params = step.init(jax.random.key(0), xs[0], carry[0])

    def cell(params, carry, x):
        hidden = step.apply(params, x, carry[0])
        return (hidden,), hidden

    run = lambda memory: lambda params, xs: rs.scan(cell, params, carry, xs, memory=memory)  # noqa: E731
    kept, again = (kept_bytes(run(memory), params, xs) for memory in (rs.Memory(), rs.Memory(recompute=("product",))))
    assert kept - again == 8 * TIME * BATCH * HIDDEN_SIZE
    with pytest.raises(ValueError, match="cell names 'product'"):
        run(rs.Memory(recompute=("products",)))(params, xs)
