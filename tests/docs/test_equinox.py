"""Cells of Equinox run by rs.scan as they are: values and gradients beside lax.scan, and what is kept."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.insight import kept_bytes
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 24, 3, 4, 8
CELLS = {"LSTMCell": 2, "GRUCell": 1}
CHOICES = [rs.Memory(), rs.Memory(segment=5)]


def build(name):
    """A cell as a function, its module with random weights as its params, a carry and inputs, all in float64."""
    states = CELLS[name]
    keys = jax.random.split(jax.random.key(0), 3)
    module = getattr(eqx.nn, name)(INPUT_SIZE, HIDDEN_SIZE, key=keys[0], dtype=jnp.float64)

    def cell(module, carry, x):
        new = jax.vmap(module)(x, carry if states == 2 else carry[0])
        new = new if states == 2 else (new,)
        return new, new[0]

    carry = tuple(jax.random.normal(keys[1], (states, BATCH, HIDDEN_SIZE)))
    return cell, module, carry, jax.random.normal(keys[2], (TIME, BATCH, INPUT_SIZE))


def weighted(run):
    """A loss of everything that a run returns."""

    def loss(*arguments):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(run(*arguments)))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


@pytest.mark.parametrize("memory", CHOICES, ids=repr)
@pytest.mark.parametrize("name", CELLS)
def test_values_and_gradients_are_those_of_lax_scan(name, memory):
    cell, module, carry, xs = build(name)
    arrays, static = eqx.partition(module, eqx.is_array)

    def ours(arrays, carry, xs):
        return rs.scan(cell, eqx.combine(arrays, static), carry, xs, memory=memory)

    def plain(arrays, carry, xs):
        return jax.lax.scan(lambda carry, x: cell(eqx.combine(arrays, static), carry, x), carry, xs)

    assert_trees_close(jax.jit(ours)(arrays, carry, xs), jax.jit(plain)(arrays, carry, xs), tolerance=1e-12)
    assert_trees_close(weighted(ours)(arrays, carry, xs), weighted(plain)(arrays, carry, xs), tolerance=1e-9)


@pytest.mark.parametrize("engine", ["fission", "lax"])
def test_only_inputs_and_carries_are_kept(engine):
    cell, module, carry, xs = build("LSTMCell")
    kept = kept_bytes(lambda xs: rs.scan(cell, module, carry, xs, engine=engine), xs)
    states = 8 * TIME * BATCH * HIDDEN_SIZE
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(module))
    # The state c follows from h, so with the engine it is kept at a few steps only.
    most = xs.nbytes + weights + (2.5 if engine == "lax" else 1.5) * states
    assert xs.nbytes + states < kept < most
    plain = kept_bytes(lambda xs: jax.lax.scan(lambda carry, x: cell(module, carry, x), carry, xs), xs)
    assert kept < plain / 2


@pytest.mark.large_loops  # Small ones keep all, names or not.
def test_a_name_in_a_module_is_known():
    class Named(eqx.Module):
        kernel: jax.Array

        def __call__(self, hidden, x):
            return jnp.tanh(rs.name(x @ self.kernel, "product") + hidden)

    module = Named(jnp.ones((INPUT_SIZE, HIDDEN_SIZE)))

    def cell(module, carry, x):
        hidden = module(carry[0], x)
        return (hidden,), hidden

    carry, xs = (jnp.zeros((BATCH, HIDDEN_SIZE)),), jnp.ones((TIME, BATCH, INPUT_SIZE))
    run = lambda memory: lambda module, xs: rs.scan(cell, module, carry, xs, memory=memory)  # noqa: E731
    kept, again = (kept_bytes(run(memory), module, xs) for memory in (rs.Memory(), rs.Memory(recompute=("product",))))
    assert kept - again == 8 * TIME * BATCH * HIDDEN_SIZE
    with pytest.raises(ValueError, match="cell names 'product'"):
        run(rs.Memory(recompute=("products",)))(module, xs)
