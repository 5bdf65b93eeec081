"""Functions and other cells go through jax2onnx: a stand-in for it here, and itself where it is installed."""

import importlib.util
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
import tiers
from onnx_files import SIZE, arguments, check, random_params, run, run_net
from rnnscan import cells
from rnnscan.export.onnx import write


onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

installed = pytest.mark.skipif(importlib.util.find_spec("jax2onnx") is None, reason="jax2onnx is not installed")
# Packages that it imports warn.
quiet = pytest.mark.filterwarnings("ignore")


def doubling(params, x, output):
    return {"a": x + x, "b": (output["c"] * params["scale"],)}


def convert(function, *, inputs, opset, input_names, output_names, **options):
    """Convert `doubling`; the sizes of outputs are left open, as jax2onnx does."""
    assert [one.shape for one in function(*(jnp.ones((2, 3)), jnp.ones((2,))))] == [(2, 3), (2,)]
    assert [str(one.shape) for one in inputs] == ["(N, 3)", "(N,)"]
    make = onnx.helper
    nodes = [
        make.make_node("Add", [input_names[0]] * 2, [output_names[0]]),
        make.make_node("Mul", [input_names[1], "scale"], [output_names[1]]),
    ]
    ports = [
        make.make_tensor_value_info(input_names[0], 1, ["N", 3]),
        make.make_tensor_value_info(input_names[1], 1, ["N"]),
    ]
    outputs = [make.make_tensor_value_info(name, 1, None) for name in output_names]
    scale = onnx.numpy_helper.from_array(np.float32(3), "scale")
    graph = make.make_graph(nodes, "doubling", ports, outputs, [scale])
    return make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=9)


def test_a_function_with_named_inputs_and_outputs(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "find_jax2onnx", lambda: types.SimpleNamespace(to_onnx=convert))
    path = tmp_path / "doubling.onnx"
    inputs = {"x": np.ones((4, 3), np.float32), "output": {"c": np.ones(4, np.float32)}}
    rs.export.to_onnx(path, doubling, {"scale": jnp.float32(3)}, inputs, dynamic=("N",))
    found = run(path, inputs)
    assert {name: one.shape for name, one in found.items()} == {"output_a": (4, 3), "output_b_0": (4,)}
    np.testing.assert_array_equal(found["output_b_0"], 3)
    sizes = onnx.load(path).graph.output[0].type.tensor_type.shape.dim
    assert [size.dim_param or size.dim_value for size in sizes] == ["N", 3]


def refuses(*arguments, **options):
    raise NotImplementedError("no plugin for primitive 'erf_inv'")


def test_the_operation_that_jax2onnx_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "find_jax2onnx", lambda: types.SimpleNamespace(to_onnx=refuses))
    net = rs.layer(cells.MGU(4))
    with pytest.raises(ValueError, match="jax2onnx says: no plugin for primitive 'erf_inv'"):
        rs.export.to_onnx(tmp_path / "net.onnx", net, random_params(net), [np.ones((5, 2, SIZE), np.float32)])
    assert not list(tmp_path.iterdir())


def test_side_effects(tmp_path, monkeypatch):
    def prints(params, x):
        jax.debug.print("{x}", x=x)
        return x

    monkeypatch.setattr(write, "find_jax2onnx", lambda: types.SimpleNamespace(to_onnx=convert))
    with pytest.raises(ValueError, match="must have no side effects"):
        rs.export.to_onnx(tmp_path / "net.onnx", prints, {}, [np.ones(3, np.float32)])


def broken(*arguments, **options):
    made = convert(*arguments, **options)
    made.graph.node[0].op_type = "NoSuchOperator"
    return made


def test_the_checker_refuses(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "find_jax2onnx", lambda: types.SimpleNamespace(to_onnx=broken))
    inputs = {"x": np.ones((4, 3), np.float32), "output": {"c": np.ones(4, np.float32)}}
    with pytest.raises(ValueError, match=r"(?s)onnx.checker must accept the file; it says: .*NoSuchOperator"):
        rs.export.to_onnx(tmp_path / "net.onnx", doubling, {"scale": jnp.float32(3)}, inputs, dynamic=("N",))
    assert not list(tmp_path.iterdir())


OTHER = {
    "MGU": rs.layer(cells.MGU(4)),
    "layer norm": rs.layer(cells.LayerNormLSTM(4), reverse=True),
    "projection and clip": rs.bidirectional(cells.LSTM(4, proj_size=3, cell_clip=1.0)),
    "zoneout": rs.layer(rs.zoneout(cells.LSTM(4), 0.1)),
    "minGRU": rs.layer(cells.MinGRU(4)),
    "sLSTM": rs.layer(cells.SLSTM(4)),
    "mixed": rs.chain(rs.layer(cells.LSTM(4)), rs.layer(cells.SRU(4))),
}


@installed
@quiet
@pytest.mark.parametrize("net", tiers.variants(OTHER, ["MGU"]))
def test_other_cells(tmp_path, net):
    check(tmp_path / "net.onnx", net, arguments(net, lengths=True, initial=True))


@installed
@quiet
def test_a_mask_with_gaps_and_a_readout(tmp_path):
    net = rs.layer(cells.LSTM(4))
    inputs = arguments(net, lengths=False, initial=False) | {"mask": np.random.default_rng(0).random((7, 4)) < 0.6}
    rs.export.to_onnx(tmp_path / "net.onnx", net, random_params(net), inputs)
    expected = run_net(net, random_params(net), inputs)
    for one, other in zip(run(tmp_path / "net.onnx", inputs).values(), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)

    def classify(params, xs):
        return jax.nn.softmax(net(params, xs)[1][-1] @ jnp.ones((4, 2)))

    rs.export.to_onnx(tmp_path / "net.onnx", classify, random_params(net), [inputs["xs"]])
    np.testing.assert_allclose(
        run(tmp_path / "net.onnx", {"xs": inputs["xs"][:3]})["output"],
        classify(random_params(net), inputs["xs"][:3]),
        atol=1e-5,
    )


@installed
@quiet
def test_complex_numbers_are_refused(tmp_path):
    net = rs.layer(cells.LRU(4))
    with pytest.raises(ValueError, match=r"export\.to_onnx: "):
        rs.export.to_onnx(tmp_path / "net.onnx", net, random_params(net), [np.ones((5, 2, SIZE), np.float32)])
