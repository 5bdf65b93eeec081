"""What ONNX cannot hold, and wrong arguments, are errors that say which and why; no file is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from onnx_files import arguments, random_params
from rnnscan import cells
from rnnscan.export.onnx import write


pytest.importorskip("onnx")

XS = np.ones((5, 2, 3), np.float32)
NET = rs.layer(cells.LSTM(4))


@pytest.fixture(autouse=True)
def _without_jax2onnx(monkeypatch):
    monkeypatch.setattr(write, "find_jax2onnx", lambda: None)


def layered(cell):
    return rs.chain(rs.layer(cells.GRU(3)), rs.layer(rs.stack(cells.GRU(3), cell)))


class Doubled(type(NET)):
    def __call__(self, params, xs, carry=None, **options):
        carry, ys = super().__call__(params, xs, carry=carry, **options)
        return carry, 2 * ys


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (layered(cells.MGU(4)), r"ONNX has operators for LSTM, GRU and RNN, and none for MGU\(hidden_size=4\)"),
        (layered(cells.LayerNormLSTM(4)), r"none for LayerNormLSTM"),
        (layered(rs.zoneout(cells.LSTM(4), 0.1)), r"none for Zoneout\(cell=LSTM"),
        (layered(cells.LSTM(4, proj_size=2)), r"no projection, the proj_size of LSTM"),
        (layered(cells.LSTM(4, cell_clip=2.0)), r"limits the inputs of activations, and the cell_clip of LSTM"),
        (layered(cells.LSTM(4, coupled_gates=True, gate_activation="relu")), r"coupled gates with gate_activation="),
        (layered(cells.GRU(4, activation="gelu")), r"no activation like activation='gelu' of GRU"),
        (layered(cells.GRU(4, gate_activation="hard_tanh")), r"no activation like gate_activation='hard_tanh'"),
        (rs.bidirectional(cells.RNN(3), merge=jnp.maximum), r"the function merge="),
        (layered(cells.GRU(4, dtype=jnp.bfloat16)), "has bfloat16 and float32; set dtype and carry_dtype"),
        (
            rs.layer(cells.GRU(4, dtype=jnp.bfloat16, carry_dtype=jnp.bfloat16)),
            "have bfloat16 from opset=22 on",
        ),
        (Doubled(cells.LSTM(4)), "none for Doubled"),
    ],
)
def test_nets_that_the_operators_do_not_hold(tmp_path, net, reason):
    with pytest.raises(ValueError, match=rf"(?s)got .*: .*{reason}.*pip install"):
        rs.export.to_onnx(tmp_path / "net.onnx", net, random_params(net), [XS])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"xs": XS, "mask": np.ones((5, 2), bool)}, "no input for 'mask'"),
        ({"xs": XS, "reset": np.ones((5, 2), bool)}, "no input for 'reset'"),
        ({"xs": XS, "carry": (np.ones(4, np.float32),) * 2}, r"states \(N, H\), not one state for all rows"),
    ],
)
def test_inputs_that_the_operators_do_not_have(tmp_path, inputs, reason):
    dynamic = {"xs": ("T", "N")} if "carry" in inputs else ("T", "N")
    with pytest.raises(ValueError, match=reason):
        rs.export.to_onnx(tmp_path / "net.onnx", NET, random_params(NET), inputs, dynamic=dynamic)


def test_a_function_needs_jax2onnx(tmp_path):
    with pytest.raises(ValueError, match=r"got .*twice.*: a function is not a net. To convert it .*onnx-functions"):
        rs.export.to_onnx(tmp_path / "net.onnx", twice, {}, [XS])


def twice(params, x):
    return 2 * x


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"opset": 13}, ValueError, "`opset` must be a number from 14 to .*; got 13"),
        ({"opset": 10_000}, ValueError, "the newest of onnx .*; got 10000"),
        ({"dynamic": "TN"}, ValueError, "export.to_onnx: `dynamic` must be names of leading axes"),
        ({"dynamic": {"x": ("T",)}}, ValueError, "export.to_onnx: `dynamic` must name inputs, 'xs'; got 'x'"),
        ({"inputs": {}}, ValueError, "export.to_onnx: there must be an input"),
        ({"inputs": [XS[..., :2]]}, ValueError, r"LSTM: .*got float32\[N,2\]"),
        (
            {"inputs": {"xs": XS, "seq_lengths": np.ones(3, np.int32)}},
            ValueError,
            "N = 2 in `xs` and N = 3 in `seq_len",
        ),
        ({"params": {"kernel": np.ones((3, 16), np.float32)}}, ValueError, "LSTM: the parameters of 4 units must be"),
        ({"params": {"kernel": 1.0}}, TypeError, r"export.to_onnx: `params\['kernel'\]` must be an array"),
    ],
)
def test_wrong_arguments(tmp_path, change, error, message):
    given = {"net": NET, "params": random_params(NET), "inputs": [XS]} | change
    with pytest.raises(error, match=message):
        rs.export.to_onnx(tmp_path / "net.onnx", **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.bad_input
def test_wrong_types(tmp_path):
    with pytest.raises(TypeError, match=r"`inputs` must be a list, tuple or dictionary .* Write \[xs\]"):
        rs.export.to_onnx(tmp_path / "net.onnx", NET, random_params(NET), XS)
    lengths = np.ones(2, np.float32)
    with pytest.raises(ValueError, match="`seq_lengths` must be integers"):
        rs.export.to_onnx(tmp_path / "net.onnx", NET, random_params(NET), {"xs": XS, "seq_lengths": lengths})
    with pytest.raises(ValueError, match="`opset` must be a number"):
        rs.export.to_onnx(tmp_path / "net.onnx", NET, random_params(NET), [XS], opset="20")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="Add a file name"):
        rs.export.to_onnx(tmp_path, NET, random_params(NET), [XS])


def test_parameters_must_fit_into_a_file(tmp_path):
    types = jax.eval_shape(lambda: rs.layer(cells.LSTM(20_000)).init(jax.random.key(0), 3))
    with pytest.raises(ValueError, match="smaller than 2 GiB; got parameters of 64"):
        rs.export.to_onnx(tmp_path / "net.onnx", rs.layer(cells.LSTM(20_000)), types, [XS])


def test_onnx_must_be_installed(tmp_path, monkeypatch):
    def missing(module, package=None):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ImportError, match=r"the extra 'onnx' must be installed; got no module 'onnx'. .*\[onnx\]"):
        rs.export.to_onnx(tmp_path / "net.onnx", NET, random_params(NET), [XS])


def test_an_initial_carry_of_another_dtype(tmp_path):
    inputs = arguments(NET, lengths=False, initial=True)
    inputs["carry"] = jax.tree.map(lambda leaf: leaf.astype(np.float16), inputs["carry"])
    with pytest.raises(ValueError, match="has float16 and float32"):
        rs.export.to_onnx(tmp_path / "net.onnx", NET, random_params(NET), inputs)
