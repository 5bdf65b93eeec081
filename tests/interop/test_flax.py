"""Nets of the cells of flax.linen and flax.nnx compute what the cells compute, run beside rnnscan."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
from rnnscan import interop
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 5, 2, 3, 4
RANDOM = np.random.default_rng(0)


def fill(leaf):
    return jnp.asarray(0.5 * RANDOM.normal(size=leaf.shape))


def to_flax_carry(carry):
    """rnnscan's (h, c) is Flax's (c, h), and its (h,) is Flax's h."""
    return carry[::-1] if len(carry) == 2 else carry[0]


def from_flax_carry(carry):
    return carry[::-1] if isinstance(carry, tuple) else (carry,)


def random_inputs(states):
    xs = fill(np.empty((TIME, BATCH, INPUT_SIZE)))
    return xs, tuple(fill(np.empty((BATCH, HIDDEN_SIZE))) for _ in range(states))


LINEN = {
    "LSTMCell": (nn.LSTMCell, {}, 2),
    "OptimizedLSTMCell": (nn.OptimizedLSTMCell, {}, 2),
    "GRUCell": (nn.GRUCell, {}, 1),
    "SimpleCell": (nn.SimpleCell, {"activation_fn": nn.relu}, 1),
    "MGUCell": (nn.MGUCell, {}, 1),
    "MGUCell_plain": (nn.MGUCell, {"reset_gate": False}, 1),
}


@pytest.mark.parametrize("name", LINEN)
def test_the_net_of_a_linen_cell_computes_what_the_cell_does(name, assert_trees_close):
    flax_type, options, states = LINEN[name]
    cell = flax_type(HIDDEN_SIZE, param_dtype=jnp.float64, **options)
    xs, carry = random_inputs(states)
    shapes = jax.eval_shape(lambda: cell.init(jax.random.key(0), to_flax_carry(carry), xs[0])["params"])
    weights = jax.tree.map(fill, shapes)
    net, params = interop.from_flax(
        weights, name.removesuffix("_plain"), **({"activation": "relu"} if name == "SimpleCell" else {})
    )
    actual = jax.jit(net)(params, xs, carry=carry)
    final, ys = jax.lax.scan(lambda c, x: cell.apply({"params": weights}, c, x), to_flax_carry(carry), xs)
    assert_trees_close(actual, (from_flax_carry(final), ys), tolerance=1e-9)


@pytest.mark.parametrize("name", LINEN)
def test_a_linen_cell_takes_the_parameters_of_a_net(name, assert_equal):
    flax_type, options, states = LINEN[name]
    cell = flax_type(HIDDEN_SIZE, param_dtype=jnp.float64, **options)
    xs, carry = random_inputs(states)
    shapes = jax.eval_shape(lambda: cell.init(jax.random.key(0), to_flax_carry(carry), xs[0])["params"])
    weights = jax.tree.map(fill, shapes)
    assert_equal(interop.to_flax(*interop.from_flax(weights, name.removesuffix("_plain"))), weights)


NNX = {
    "LSTMCell": (nnx.LSTMCell, {}, 2),
    "OptimizedLSTMCell": (nnx.OptimizedLSTMCell, {"gate_fn": jax.nn.hard_sigmoid}, 2),
    "GRUCell": (nnx.GRUCell, {}, 1),
    "SimpleCell": (nnx.SimpleCell, {"activation_fn": jax.nn.relu, "dtype": jnp.float64}, 1),
}


@pytest.mark.parametrize("name", variants(NNX.keys(), ["OptimizedLSTMCell"]))
def test_the_net_of_an_nnx_cell_computes_what_the_cell_does(name, assert_trees_close, assert_equal):
    nnx_type, options, states = NNX[name]
    cell = nnx_type(INPUT_SIZE, HIDDEN_SIZE, param_dtype=jnp.float64, rngs=nnx.Rngs(0), **options)
    nnx.update(cell, jax.tree.map(fill, nnx.to_pure_dict(nnx.state(cell, nnx.Param))))
    xs, carry = random_inputs(states)
    net, params = interop.from_nnx(cell)
    actual = jax.jit(net)(params, xs, carry=carry)
    final, ys = to_flax_carry(carry), []
    for x in xs:
        final, y = cell(final, x)
        ys.append(y)
    assert_trees_close(actual, (from_flax_carry(final), jnp.stack(ys)), tolerance=1e-9)
    assert_equal(interop.to_nnx(net, params, name), nnx.to_pure_dict(nnx.state(cell, nnx.Param)))


def test_activations_of_nnx_cells_are_the_nets():
    cell = nnx.OptimizedLSTMCell(3, 4, gate_fn=jax.nn.hard_sigmoid, rngs=nnx.Rngs(0))
    assert interop.from_nnx(cell)[0].cell == rs.cells.LSTM(4, gate_activation=jax.nn.hard_sigmoid)
    assert interop.from_nnx(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))[0].cell == rs.cells.GRU(4)


def test_what_nothing_is_like_is_refused():
    with pytest.raises(ValueError, match=r"from_nnx: the cell must be one of 'LSTMCell', .*; got 'Linear'\."):
        interop.from_nnx(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"from_nnx: a SimpleCell must have residual=False; got residual=True\."):
        interop.from_nnx(nnx.SimpleCell(4, 4, residual=True, rngs=nnx.Rngs(0)))


def test_a_residual_simple_cell_has_the_identity_in_its_recurrent_kernel(assert_trees_close):
    cell = nn.SimpleCell(HIDDEN_SIZE, residual=True, param_dtype=jnp.float64)
    xs, (hidden,) = random_inputs(1)
    weights = jax.tree.map(fill, cell.init(jax.random.key(0), hidden, xs[0])["params"])
    net, params = interop.from_flax(weights, "SimpleCell")
    params["recurrent_kernel"] += jnp.eye(HIDDEN_SIZE)
    final, ys = jax.lax.scan(lambda c, x: cell.apply({"params": weights}, c, x), hidden, xs)
    assert_trees_close(jax.jit(net)(params, xs, carry=(hidden,)), ((final,), ys), tolerance=1e-9)
