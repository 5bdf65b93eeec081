"""What a file holds: names, sizes, operators, dtypes and versions; and writing it in one step."""

import os
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from onnx_files import SIZE, arguments, random_params, run, run_net
from rnnscan import cells
from rnnscan.export.onnx import functions


onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

NET = rs.chain(rs.bidirectional(cells.LSTM(4)), rs.layer(rs.stack(cells.GRU(5), cells.RNN(2))))


def write(path, net, inputs, **options):
    rs.export.to_onnx(path, net, random_params(net), inputs, **options)
    return onnx.load(path)


def described(ports):
    return {port.name: [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim] for port in ports}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    return write(path, NET, arguments(NET, lengths=True, initial=True))


def test_inputs_and_outputs_have_names_and_sizes(model):
    states = {
        "net_0_forward_hidden": 4,
        "net_0_forward_cell": 4,
        "net_0_backward_hidden": 4,
        "net_0_backward_cell": 4,
        "net_1_layer_0_hidden": 5,
        "net_1_layer_1_hidden": 2,
    }
    first = {"xs": ["T", "N", SIZE], "seq_lengths": ["N"]}
    assert described(model.graph.input) == first | {f"initial_{name}": ["N", size] for name, size in states.items()}
    last = {f"last_{name}": ["N", size] for name, size in states.items()}
    assert described(model.graph.output) == {"ys": ["T", "N", 2]} | last


def test_each_recurrence_is_one_operator(model):
    used = Counter(node.op_type for node in model.graph.node)
    assert [used[kind] for kind in ("LSTM", "GRU", "RNN")] == [1, 1, 1]
    assert not used.keys() & {"Loop", "Scan", "If"}


def test_an_old_runtime_reads_the_default_version(model):
    assert [opset.version for opset in model.opset_import] == [20]
    assert model.ir_version <= 9
    assert model.producer_name == "rnnscan"


@pytest.mark.parametrize("opset", [14, 22])
def test_the_version_is_chosen(tmp_path, opset):
    net = rs.layer(cells.GRU(4))
    inputs = arguments(net, lengths=True, initial=True)
    model = write(tmp_path / "net.onnx", net, inputs, opset=opset)
    assert [found.version for found in model.opset_import] == [opset]
    for one, other in zip(
        run(tmp_path / "net.onnx", inputs).values(), run_net(net, random_params(net), inputs), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("dynamic", "sizes"),
    [
        (("steps", None), {"xs": ["steps", 4, SIZE], "seq_lengths": [4], "initial_hidden": [4, 4]}),
        ((None, "rows"), {"xs": [7, "rows", SIZE], "seq_lengths": ["rows"], "initial_hidden": ["rows", 4]}),
        ({"xs": ("T",)}, {"xs": ["T", 4, SIZE], "seq_lengths": [4], "initial_hidden": [4, 4]}),
    ],
)
def test_which_axes_are_dynamic(tmp_path, dynamic, sizes):
    net = rs.layer(cells.RNN(4))
    model = write(tmp_path / "net.onnx", net, arguments(net, lengths=True, initial=True), dynamic=dynamic)
    assert described(model.graph.input) == sizes


def test_inputs_may_be_types_and_parameters_of_another_dtype(tmp_path):
    net = rs.layer(cells.LSTM(4, dtype=jnp.float32, carry_dtype=jnp.float32))
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), random_params(net))
    types = {
        "xs": jax.ShapeDtypeStruct((7, 4, SIZE), jnp.int8),
        "seq_lengths": jax.ShapeDtypeStruct((4,), jnp.int16),
    }
    path = tmp_path / "net.onnx"
    rs.export.to_onnx(path, net, params, types)
    random = np.random.default_rng(0)
    inputs = {
        "xs": random.integers(-3, 3, (7, 4, SIZE)).astype(np.int8),
        "seq_lengths": np.array([7, 0, -1, 300], np.int16),
    }
    for one, other in zip(run(path, inputs).values(), run_net(net, params, inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_float16(tmp_path):
    net = rs.bidirectional(cells.GRU(4, dtype=jnp.float16))
    inputs = arguments(net, lengths=True, initial=True, dtype=np.float16)
    model = write(tmp_path / "net.onnx", net, inputs)
    assert {weight.data_type for weight in model.graph.initializer} <= {
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.INT64,
    }
    for one, other in zip(
        run(tmp_path / "net.onnx", inputs).values(), run_net(net, random_params(net), inputs), strict=True
    ):
        assert one.dtype == np.float16
        np.testing.assert_allclose(one, other, atol=1e-2)


def test_float64(tmp_path, x64):
    # onnxruntime has no float64 kernel on CPUs; the reference of onnx has, without lengths.
    net = rs.layer(cells.LSTM(4, param_dtype=jnp.float64))
    inputs = arguments(net, lengths=False, initial=True, dtype=np.float64)
    model = write(tmp_path / "net.onnx", net, inputs)
    names = [one.name for one in model.graph.input]
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(list(inputs.values()))]
    from onnx.reference import ReferenceEvaluator

    found = ReferenceEvaluator(model).run(None, dict(zip(names, leaves, strict=True)))
    for one, other in zip(found, run_net(net, random_params(net), inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_bfloat16(tmp_path):
    net = rs.layer(cells.RNN(4, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16))
    model = write(tmp_path / "net.onnx", net, arguments(net, lengths=True, initial=True, dtype=jnp.bfloat16), opset=22)
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "new" / "net.onnx"
    net = rs.layer(cells.RNN(4))
    write(path, net, arguments(net, lengths=False, initial=False))
    old = path.read_bytes()

    def fails(*arguments):
        raise OSError("killed")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="killed"):
        write(path, rs.layer(cells.GRU(4)), arguments(net, lengths=False, initial=False))
    assert path.read_bytes() == old
    monkeypatch.undo()
    monkeypatch.setattr(functions, "find_jax2onnx", lambda: None)
    with pytest.raises(ValueError, match="MGU"):
        write(path, rs.layer(cells.MGU(4)), arguments(net, lengths=False, initial=False))
    assert path.read_bytes() == old
    write(path, rs.layer(cells.GRU(4)), arguments(net, lengths=False, initial=False))
    assert path.read_bytes() != old
    assert [one.name for one in path.parent.iterdir()] == ["net.onnx"]
