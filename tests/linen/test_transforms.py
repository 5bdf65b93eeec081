"""linen.RNN within Flax's lifted transforms, JAX's own, and models that share modules, as flax.linen.RNN is there."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from flax_cells import BATCH, HIDDEN_SIZE, INPUT_SIZE, KEYS, TIME, draw, gradients, remat_in_a_loop, variables_of
from rnnscan import linen
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


def new_cell(features=HIDDEN_SIZE):
    return nn.SimpleCell(features, param_dtype=jnp.float64)


class Remat(nn.Module):
    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        return nn.remat(self.rnn_type)(new_cell(), name="rnn")(inputs)


class RematCell(nn.Module):
    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        return self.rnn_type(nn.remat(nn.SimpleCell)(HIDDEN_SIZE, param_dtype=jnp.float64))(inputs, reverse=True)


class Jit(nn.Module):
    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        return nn.jit(self.rnn_type)(new_cell(), return_carry=True)(inputs)


class VmapOverModels(nn.Module):
    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        several = nn.vmap(
            self.rnn_type, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=2
        )
        return several(new_cell())(inputs)


class OneLayer(nn.Module):
    rnn_type: type

    @nn.compact
    def __call__(self, inputs, _):
        return self.rnn_type(new_cell(INPUT_SIZE))(inputs), None


class ScanOverLayers(nn.Module):
    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        layers = nn.scan(OneLayer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return layers(self.rnn_type)(inputs, None)[0]


class SharedCell(nn.Module):
    """One cell in two loops, once in reverse; both are the same parameters."""

    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        cell = new_cell(INPUT_SIZE)
        return self.rnn_type(cell, reverse=True)(self.rnn_type(cell)(inputs))


class SharedInSetup(nn.Module):
    """A cell that is also called by itself, and an RNN that is called twice."""

    rnn_type: type

    def setup(self):
        self.cell = new_cell(INPUT_SIZE)
        self.rnn = self.rnn_type(self.cell, return_carry=True)

    def __call__(self, inputs):
        carry, outputs = self.rnn(self.rnn(inputs)[1])
        return self.cell(carry, outputs[:, 0])


class ShareScope(nn.Module):
    rnn_type: type

    def setup(self):
        self.rnn = self.rnn_type(new_cell())
        nn.share_scope(self, self.rnn)

    def __call__(self, inputs):
        return self.rnn(inputs)


class CellWithModules(nn.RNNCellBase):
    """A cell of Flax around modules that it is given, one of which another module shares."""

    inner: nn.RNNCellBase
    embed: nn.Module

    @nn.compact
    def __call__(self, carry, inputs):
        carry, hidden = self.inner(carry, self.embed(inputs))
        return carry, nn.Dense(2, param_dtype=jnp.float64)(hidden)

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return self.inner.initialize_carry(rng, input_shape)

    @property
    def num_feature_axes(self):
        return 1


class Nested(nn.Module):
    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        embed = nn.Dense(6, param_dtype=jnp.float64)
        cell = CellWithModules(new_cell(), embed)
        return self.rnn_type(cell)(inputs), embed(inputs)


class Larger(nn.Module):
    """Embedding, two recurrent layers, a readout."""

    rnn_type: type

    @nn.compact
    def __call__(self, inputs):
        embedded = nn.Dense(5, param_dtype=jnp.float64)(inputs)
        for layer in range(2):
            hidden = self.rnn_type(nn.GRUCell(5, param_dtype=jnp.float64), name=f"rnn_{layer}")(embedded)
            embedded = embedded + nn.LayerNorm(param_dtype=jnp.float64)(hidden)
        return nn.Dense(2, param_dtype=jnp.float64)(embedded)


MODELS = [
    *variants([Remat, Jit], []),
    pytest.param(RematCell, marks=[remat_in_a_loop, pytest.mark.slow]),
    # A transformation with parameters of their own and one with shared ones, a scope that is shared, and all at once.
    *variants(
        [VmapOverModels, ScanOverLayers, SharedCell, SharedInSetup, ShareScope, Nested, Larger],
        [ShareScope, Larger],
    ),
]


@pytest.mark.parametrize("model_type", MODELS, ids=lambda model_type: model_type.__name__)
def test_models(model_type):
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    flax, own = model_type(nn.RNN), model_type(linen.RNN)
    assert jax.eval_shape(own.init, KEYS, inputs) == jax.eval_shape(flax.init, KEYS, inputs)
    variables = variables_of(flax, inputs)
    expected = gradients(flax, variables, inputs)
    assert_trees_close(gradients(own, variables, inputs), expected, tolerance=1e-9)


def test_variables_start_the_same_in_a_model():
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    expected, variables = (jax.jit(SharedCell(rnn).init)(KEYS, inputs) for rnn in (nn.RNN, linen.RNN))
    assert_trees_close(variables, expected)


def test_modules_look_the_same_in_a_table():
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    flax, own = (rnn(new_cell()).tabulate(KEYS, inputs) for rnn in (nn.RNN, linen.RNN))
    assert own == flax


def test_vmap_over_parameters_and_the_derivative_of_a_derivative():
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    flax, own = (rnn(nn.SimpleCell(2, param_dtype=jnp.float64)) for rnn in (nn.RNN, linen.RNN))
    variables = [variables_of(flax, inputs), jax.tree.map(jnp.negative, variables_of(flax, inputs))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *variables)

    def curvature(model):
        def loss(variables):
            return (model.apply(variables, inputs) ** 2).sum()

        def length(variables):
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(jax.grad(loss)(variables)))

        return jax.jit(jax.vmap(jax.grad(length)))(stacked)

    assert_trees_close(curvature(own), curvature(flax), tolerance=1e-9)


def test_forward_mode_by_the_lax_engine():
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    flax, own = nn.RNN(new_cell()), linen.RNN(new_cell(), engine="lax")
    variables = variables_of(flax, inputs)

    def tangents(model):
        return jax.jit(lambda tangent: jax.jvp(lambda v: model.apply(v, inputs), (variables,), (tangent,)))(variables)

    assert_trees_close(tangents(own), tangents(flax), tolerance=1e-9)


MEMORIES = [None, rs.Memory(segment="sqrt"), rs.Memory(recompute="all", chunk=2)]


@pytest.mark.parametrize("memory", variants(MEMORIES, MEMORIES[1:2]), ids=str)
def test_every_memory_choice_gives_the_same(memory):
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    flax, own = nn.RNN(new_cell(), return_carry=True), linen.RNN(new_cell(), return_carry=True, memory=memory)
    variables = variables_of(flax, inputs)
    lengths = jnp.array([TIME, 2, 1])
    expected = gradients(flax, variables, inputs, seq_lengths=lengths)
    assert_trees_close(gradients(own, variables, inputs, seq_lengths=lengths), expected, tolerance=1e-9)


def test_a_name_in_a_cell_of_flax_is_one_of_the_memory_choice():
    class Naming(nn.SimpleCell):
        @nn.compact
        def __call__(self, carry, inputs):
            dense = nn.Dense(self.features, name="dense")
            hidden = jnp.tanh(rs.name(dense(jnp.concatenate([carry, inputs], axis=-1)), "preactivation"))
            return hidden, hidden

    inputs = jnp.ones((4, 16, 3), jnp.float32)

    def kept(memory):
        model = linen.RNN(Naming(8), memory=memory)
        variables = jax.eval_shape(model.init, KEYS, inputs)
        return rs.insight.kept_bytes(lambda variables: model.apply(variables, inputs), variables)

    with jax.enable_x64(False):
        assert kept(rs.Memory()) - kept(rs.Memory(recompute=("preactivation",))) == 4 * 16 * 8 * 4
