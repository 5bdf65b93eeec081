"""Chains whose layers lie on different devices, in a wavefront over chunks."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import rnnscan as rs
from programs import quick_or_slow, report_of
from rnnscan import cells


# Lengths and resets go with their chunk, an axis for the batch beside the layers', and weights on their layer's device.
QUICK = ["GRU, recompute all, rows, data, stacked"]
SLOW = [
    *("LSTM, all names", "LSTM, segments, rows", "LSTM, recompute all, data", "GRU, all names", "GRU, segments, data"),
    *("GRU, recompute all, rows, data", "LSTM, all names, stacked"),
    *("MinGRU, all names", "MinGRU, recompute all, rows", "MinGRU, segments"),
]


def found(quick):
    return report_of("pipelined.py", QUICK if quick else SLOW)


@pytest.mark.parametrize(("case", "quick"), quick_or_slow(QUICK, SLOW))
def test_it_equals_the_plain_chain_in_chunks_and_3_rounds_forward_and_backward(case, quick):
    result = found(quick)[case]
    assert result["difference"] < 1e-5
    assert result["rounds"] == [5 + 3, 5 + 3]
    assert result["stay"]


def mesh_of(**sizes):
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def call(mesh, *, layers=2, features=4, chunks=None, stacked=False, **options):
    net = rs.chain(*[rs.layer(cells.GRU(4))] * layers, pipeline="layers", chunks=chunks)
    xs = jnp.ones((6, 2, features))
    params = net.init(jax.random.key(0), features)
    params = rs.sharding.stack_layers(params) if stacked else params
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.eval_shape(lambda params, xs: net(params, xs, **options), params, xs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: call(mesh_of(data=2)), r"pipeline='layers' needs a mesh with this axis; got axes 'data'"),
        (lambda: call(mesh_of(layers=4)), r"one device for each of the 2 layers; got 4"),
        (lambda: call(mesh_of(layers=2), features=3), "inputs of 4 features, as many as outputs; got 3"),
        (lambda: call(mesh_of(layers=2), chunks=4), "got 4 chunks for 6 steps"),
        (lambda: call(mesh_of(layers=2), padding="hold"), "takes no 'padding'; got padding='hold'"),
        (lambda: call(mesh_of(layers=2), key=jax.random.key(0)), "makes no random choices"),
        (lambda: rs.chain(rs.layer(cells.GRU(4)), rs.layer(cells.RNN(4)), pipeline="layers"), "layers must be equal"),
        (lambda: rs.chain(*[rs.bidirectional(cells.GRU(4), cells.GRU(4))] * 2, pipeline="layers"), "chunk by chunk"),
        (lambda: rs.chain(*[rs.layer(cells.GRU(4))] * 2, pipeline="layers", dropout=0.5), "a pipeline has no dropout"),
        (lambda: rs.chain(rs.layer(cells.GRU(4)), chunks=2), "number of chunks of a pipeline"),
    ],
)
def test_errors_come_before_compute(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("stacked", [False, True])
def test_an_axis_of_one_device_runs_the_plain_chain(stacked):
    _, ys = call(mesh_of(layers=1, data=2), stacked=stacked)
    assert ys.shape == (6, 2, 4)


def test_layers_of_other_shapes_are_not_stacked():
    net = rs.chain(*[rs.layer(cells.GRU(4))] * 2, pipeline="layers")
    with pytest.raises(ValueError, match="must have the same shapes"):
        rs.sharding.stack_layers(net.init(jax.random.key(0), 3))
    params = rs.sharding.stack_layers(net.init(jax.random.key(0), 4))
    with pytest.raises(ValueError, match=r"entries 'net_0', 'net_1', 'net_2'; got 'layers'"):
        rs.chain(*[rs.layer(cells.GRU(4))] * 3, pipeline="layers")(params, jnp.ones((6, 2, 4)))
