"""fuse_round_trips(): dtypes, transpositions and transfers that undo each other, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rewriting import assert_same, floats, operations
from rnnscan.graph import Name


pytestmark = pytest.mark.typed


def test_every_reader_of_a_round_trip_is_rewired():
    """detectron2's fuse_copy_between_cpu_and_gpu rewires the first reader, and the second one dangles."""

    def function(x):
        back = x.astype(jnp.float32).astype(jnp.bfloat16)
        return jnp.sin(back), jnp.cos(back) * back, back

    x = floats(3, dtype=jnp.bfloat16)
    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, x))
    assert operations(fused) == ["sin", "cos", "mul"]
    assert [*map(str, fused.undefined())] == ["x"]
    assert fused.outputs["result[2]"] == Name("x")
    assert_same(fused, function, x, rtol=0.02)


def test_a_graph_without_round_trips_stays_as_it_is():
    """detectron2's ends with an IndexError."""
    graph = rs.graph.trace(lambda x: jnp.tanh(jnp.sin(x)), floats(2))
    assert rs.graph.fuse_round_trips(graph) == graph
    assert rs.graph.fuse_round_trips(rs.graph.trace(lambda x: x, 1.0)).nodes == ()


def test_the_way_out_stays_where_something_else_reads_it():
    def function(x):
        wide = x.astype(jnp.float32)
        return wide * 2, wide.astype(jnp.bfloat16)

    x = 0.2 * floats(3, dtype=jnp.bfloat16)  # Both cotangents of x are positive, so the sum does not cancel.
    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, x))
    assert operations(fused) == ["convert_element_type", "mul"]
    # The two cotangents of x are added in bfloat16 now, and were added in float32: one more rounding.
    assert_same(fused, function, x, rtol=2**-7)


@pytest.mark.parametrize(
    ("dtypes", "is_fused"),
    [
        (("bfloat16", "float32", "bfloat16"), True),
        (("float16", "bfloat16", "float16"), False),
        (("float32", "bfloat16", "float32"), False),
        (("float16", "float32", "bfloat16", "float32", "float16"), False),
        (("int8", "int32", "int8"), True),
        (("int8", "uint8", "int8"), False),
        (("int32", "float32", "int32"), False),
        (("int16", "float32", "int16"), True),
        (("uint16", "float16", "uint16"), False),
        (("int8", "bfloat16", "int8"), True),
        (("bool", "int32", "bool"), True),
        (("bool", "bfloat16", "bool"), True),
        (("float32", "int32", "float32"), False),
        (("float8_e4m3fn", "float16", "float8_e4m3fn"), True),
        (("float8_e5m2", "bfloat16", "float32", "float8_e5m2"), True),
        (("float32", "complex64", "float32"), False),
    ],
)
def test_dtypes_go_there_and_back_where_every_value_survives(dtypes, is_fused):
    first, *others = dtypes

    def function(x):
        for dtype in others:
            x = jax.lax.convert_element_type(x.real if x.dtype == "complex64" else x, dtype)
        return x

    x = jnp.arange(-4, 252).astype(first) if first != "bool" else jnp.array([True, False])
    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, x))
    assert (operations(fused) == []) == is_fused
    np.testing.assert_array_equal(np.float32(fused.to_cell()(x)), np.float32(function(x)))
    if is_fused and x.dtype.itemsize == 1 and first != "bool":
        every = jax.lax.bitcast_convert_type(jnp.arange(256, dtype=jnp.uint8), x.dtype)
        np.testing.assert_array_equal(np.float32(function(every)), np.float32(every))


def test_a_trip_may_stop_on_the_way_back():
    def function(x):
        return x.astype(jnp.float16).astype(jnp.float32).astype(jnp.float16) * 2

    fused = rs.graph.fuse_round_trips(rs.graph.trace(function, floats(3)))
    assert operations(fused) == ["convert_element_type", "mul"]
    assert_same(fused, function, floats(3), rtol=1e-3)


def test_transpositions_that_change_nothing_together_are_gone():
    def function(x):
        around = x
        for _ in range(3):
            around = jnp.transpose(around, (1, 2, 0))
        half = jnp.transpose(x, (2, 1, 0))
        return around + jnp.transpose(half, (2, 1, 0)), half, jnp.transpose(x, (1, 0, 2))

    x = floats(2, 3, 4)
    square = floats(3, 3, 3)
    assert operations(rs.graph.fuse_round_trips(rs.graph.trace(function, x))) == ["transpose", "add", "transpose"]
    for each in (x, square):
        assert_same(rs.graph.fuse_round_trips(rs.graph.trace(function, each)), function, each)


def test_trips_within_trips_and_very_long_ones_are_gone():
    def function(x):
        for _ in range(250):
            x = x.T.astype(jnp.float32).T.T.astype(jnp.bfloat16).T
        return x

    x = floats(2, 3, dtype=jnp.bfloat16)
    graph = rs.graph.trace(function, x)
    assert len(graph.nodes) == 1_500
    assert rs.graph.fuse_round_trips(graph).nodes == ()
    assert_same(rs.graph.fuse_round_trips(graph), function, x)


def test_transfers_to_another_memory_space_and_back_are_gone():
    def function(x):
        host = jax.device_put(x, jax.memory.Space.Host)
        back = jax.device_put(host, jax.memory.Space.Device)
        return jnp.sin(back) * back

    graph = rs.graph.trace(function, floats(3))
    assert operations(graph).count("device_put") == 2
    fused = rs.graph.fuse_round_trips(graph)
    assert operations(fused) == ["sin", "mul"]
    expected = jax.make_jaxpr(lambda x: jnp.sin(x) * x)(floats(3))
    assert [eqn.primitive.name for eqn in expected.eqns] == operations(fused)


def test_labels_of_a_fused_trip_move_to_the_value():
    def function(x):
        return jnp.sin(rs.name((2 * x).T.T, "twice"))

    graph = rs.graph.fuse_round_trips(rs.graph.fuse_names(rs.graph.trace(function, floats(2, 3))))
    assert operations(graph) == ["mul", "sin"]
    assert [*graph.labels.values()] == [("twice",)]
