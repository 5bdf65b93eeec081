"""Conversions inside jax.jit and jax.grad: traced tensors are read like concrete ones, and get gradients."""

from functools import partial
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
from rnnscan import interop


LSTM, GRU = rs.cells.LSTM(4), rs.cells.GRU(4)
PEEPHOLES = rs.cells.LSTM(4, peepholes=True)


def two(cell):
    return rs.chain(rs.bidirectional(cell), rs.bidirectional(cell))


class GRUCell(SimpleNamespace):
    """An Equinox cell has its arrays as attributes."""


# A net, its tensors in another library, and what reads them.
READ = {
    "torch": (two(GRU), interop.to_torch, partial(interop.from_torch, kind="GRU")),
    "torch_projection": (rs.layer(rs.cells.LSTM(4, proj_size=2)), interop.to_torch, interop.from_torch),
    "cudnn": (two(LSTM), interop.to_cudnn, lambda weight: interop.from_cudnn(weight, 3, 4, 2, True)),
    "keras": (rs.layer(GRU), interop.to_keras, partial(interop.from_keras_weights, kind="GRU")),
    "keras_convolution": (
        rs.layer(rs.cells.ConvLSTM(4, (3, 2))),
        interop.to_keras,
        partial(interop.from_keras_weights, kind="ConvLSTM2D"),
    ),
    "flax": (rs.layer(GRU), interop.to_flax, partial(interop.from_flax, kind="GRUCell")),
    "equinox": (rs.layer(GRU), interop.to_equinox, lambda arrays: interop.from_equinox(GRUCell(**arrays))),
    "haiku": (
        rs.layer(rs.cells.GRU(4, reset_after=False)),
        interop.to_haiku,
        partial(interop.from_haiku, kind="GRU"),
    ),
    "caffe2": (rs.layer(LSTM), interop.to_caffe2, interop.from_caffe2),
    "caffe2_blobs": (rs.layer(rs.cells.MILSTM(4)), interop.to_caffe2, interop.from_caffe2),
    "caffe2_attention": (
        rs.attention.decoder(LSTM, rs.attention.Additive(6, 6)),
        interop.to_caffe2_attention,
        partial(interop.from_caffe2_attention, attention_type="Regular"),
    ),
    "dl4j": (rs.bidirectional(PEEPHOLES), interop.to_dl4j, interop.from_dl4j),
    "onnx": (rs.bidirectional(PEEPHOLES), interop.to_onnx, partial(interop.from_onnx, direction="bidirectional")),
}


@pytest.mark.parametrize(("net", "write", "read"), READ.values(), ids=READ)
def test_traced_tensors_become_the_same_parameters(net, write, read, random_params, assert_equal):
    params = random_params(net)
    nets = []

    def read_inside(tensors):
        inside, of_inside = read(tensors)
        nets.append(inside)
        return of_inside

    assert_equal(jax.jit(read_inside)(write(net, params)), params)
    assert nets == [net]


@pytest.mark.usefixtures("x64")
def test_parameters_of_flax_get_their_gradients(assert_trees_close):
    random = np.random.default_rng(0)
    xs, hidden = jnp.asarray(random.normal(size=(6, 3, 4))), jnp.asarray(random.normal(size=(3, 5)))
    cell = nn.GRUCell(5, param_dtype=jnp.float64)
    shapes = jax.eval_shape(cell.init, jax.random.key(0), hidden, xs[0])["params"]
    weights = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), shapes)

    def loss(weights):
        net, params = interop.from_flax(weights, "GRUCell")
        return jnp.sum(jnp.sin(net(params, xs, carry=(hidden,))[1]))

    def flax_loss(weights):
        return jnp.sum(jnp.sin(jax.lax.scan(lambda h, x: cell.apply({"params": weights}, h, x), hidden, xs)[1]))

    expected = jax.jit(jax.value_and_grad(flax_loss))(weights)
    assert_trees_close(jax.value_and_grad(loss)(weights), expected, tolerance=1e-9)
    assert_trees_close(jax.jit(jax.value_and_grad(loss))(weights), expected, tolerance=1e-9)


@pytest.mark.parametrize("kind", ["LSTMCell", "SimpleCell"])
def test_an_nnx_cell_is_read_and_written_inside_jit(kind, assert_equal):
    cell = getattr(nnx, kind)(3, 4, rngs=nnx.Rngs(0))
    net, params = interop.from_nnx(cell)
    state = nnx.to_pure_dict(nnx.state(cell, nnx.Param))
    assert_equal(nnx.jit(lambda cell: interop.from_nnx(cell)[1])(cell), params)
    assert_equal(jax.jit(lambda params: interop.to_nnx(net, params, kind))(params), state)


def test_a_traced_recurrent_bias_is_not_known_to_be_zero(random_params):
    net = rs.layer(GRU)
    with pytest.raises(ValueError, match=r"to_nnx: `recurrent_bias` must be zero, .*; got a traced array\."):
        jax.eval_shape(lambda params: interop.to_nnx(net, params), random_params(net))


def test_parameters_of_flax_are_written_inside_jit(random_params, assert_equal):
    net = rs.layer(GRU)
    params = random_params(net)
    assert_equal(jax.jit(partial(interop.to_flax, net))(params), interop.to_flax(net, params))


@pytest.mark.parametrize("write", [interop.to_torch, interop.to_keras, interop.to_caffe2, interop.to_onnx])
def test_numpy_arrays_are_not_made_of_traced_parameters(write, random_params):
    net = rs.layer(LSTM)
    with pytest.raises(TypeError, match=rf"{write.__name__}: the parameters must have values.*outside of jax\.jit"):
        jax.eval_shape(lambda params: len(write(net, params)) * jnp.ones(()), random_params(net))
