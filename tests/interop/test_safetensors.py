"""Files of safetensors hold parameters exactly; one that is not whole, not rnnscan's or not the net's is refused."""

import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.interop import safetensors


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


files = pytest.importorskip("safetensors")

NET = rs.chain(rs.bidirectional(rs.cells.LSTM(4)), rs.layer(rs.cells.GRU(5)))


@pytest.fixture
def params(random_params):
    return random_params(NET)


@pytest.fixture
def path(tmp_path, params):
    path = tmp_path / "net.safetensors"
    safetensors.save(path, NET, params)
    return path


def test_parameters_come_back_bit_for_bit(path, params, assert_equal):
    assert_equal(safetensors.load(path), params)
    assert_equal(safetensors.load(str(path), NET), params)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.usefixtures("x64")
def test_every_dtype_comes_back(dtype, tmp_path, random_params, assert_equal):
    params = random_params(NET, dtype=jnp.dtype(dtype))
    safetensors.save(tmp_path / "file", NET, params)
    assert_equal(safetensors.load(tmp_path / "file"), params)


def test_arrays_are_written_by_place_whatever_lies_how_in_memory(tmp_path, params, assert_equal):
    turned = rs.interop.from_torch(rs.interop.to_torch(NET.nets[0], params["net_0"]))[1]
    turned["forward"]["kernel"] = np.asfortranarray(turned["forward"]["kernel"])
    safetensors.save(tmp_path / "file", NET.nets[0], turned)
    assert_equal(safetensors.load(tmp_path / "file"), params["net_0"])
    with files.safe_open(tmp_path / "file", framework="numpy") as file:
        assert sorted(file.keys())[0] == "backward/bias"


def test_the_metadata_says_what_wrote_it(path):
    with files.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "rnnscan"
    assert metadata["rnnscan"][0].isdigit()
    assert metadata["net"] == repr(NET)
    assert len(metadata["sha256"]) == 64


def test_a_truncated_file_is_refused(path):
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"load: '.*net\.safetensors' must be a complete safetensors file; got"):
            safetensors.load(path)


def test_an_altered_file_is_refused(path):
    altered = bytearray(path.read_bytes())
    altered[-1] ^= 1
    path.write_bytes(altered)
    with pytest.raises(ValueError, match=r"must be unaltered; got tensors with another digest"):
        safetensors.load(path)


def test_a_file_of_another_program_is_refused(tmp_path):
    numpy_files = importlib.import_module("safetensors.numpy")
    numpy_files.save_file({"weight_ih_l0": np.ones((16, 3))}, tmp_path / "file", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"must be a file that rnnscan wrote; got the tensors 'weight_ih_l0' without .*from_torch"
    ):
        safetensors.load(tmp_path / "file")


def test_a_file_of_another_layout_is_refused(path):
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["__metadata__"]["layout"] = "2"
    path.write_bytes(whole[:8] + json.dumps(header, separators=(",", ":")).encode().ljust(length) + whole[8 + length :])
    with pytest.raises(ValueError, match=r"must be of layout 1; got layout 2, of rnnscan \d"):
        safetensors.load(path)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            rs.chain(rs.bidirectional(rs.cells.LSTM(4)), rs.layer(rs.cells.GRU(6))),
            r"'net_1/kernel' must be \(8, 18\), and is \(8, 15\)",
        ),
        (rs.chain(rs.layer(rs.cells.LSTM(4)), rs.layer(rs.cells.GRU(5))), r"unknown 'net_0/backward/bias'"),
        (
            rs.chain(rs.bidirectional(rs.cells.LSTM(4, peepholes=True)), rs.layer(rs.cells.GRU(5))),
            r"missing 'net_0/backward/peepholes'",
        ),
    ],
    ids=["size", "directions", "option"],
)
def test_parameters_of_another_net_are_refused_by_name(net, message, path):
    with pytest.raises(ValueError, match=message) as refusal:
        safetensors.load(path, net)
    assert repr(net) in str(refusal.value)
    assert repr(NET) in str(refusal.value)


def test_there_must_be_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load: there must be a file '.*none'; got none\."):
        safetensors.load(tmp_path / "none")


@pytest.mark.parametrize(
    "cell", [rs.residual(rs.cells.LSTM(4)), rs.cells.RGLRU(4), rs.cells.S6(4)], ids=["residual", "rg-lru", "s6"]
)
def test_nets_that_take_inputs_of_one_size(cell, tmp_path):
    net = rs.layer(cell)
    params = net.init(jax.random.key(0), 4)
    safetensors.save(tmp_path / "file", net, params)
    loaded = safetensors.load(tmp_path / "file", net)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    other = rs.layer(rs.residual(rs.cells.GRU(4)))
    with pytest.raises(ValueError, match=r"load: the parameters in .* must be those of"):
        safetensors.load(tmp_path / "file", other)


def test_numbers_of_the_other_byte_order(tmp_path):
    numbers = np.arange(3, dtype=">f4")
    safetensors.save(tmp_path / "file", NET, {"net": numbers})
    np.testing.assert_array_equal(safetensors.load(tmp_path / "file")["net"], numbers)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([np.ones(3)], r"must be nested dictionaries of arrays, none of them empty; got list at 'the top'\."),
        (np.ones(3), r"must be nested dictionaries of arrays, .*; got float64\[3\] at 'the top'\."),
        ({"net_0": {}}, r"none of them empty; got dict at 'net_0'\."),
        ({"net_0": {"kernel": 1.0}}, r"got float at 'net_0/kernel'\."),
        ({"net/0": np.ones(3)}, r"names must be strings without '/', .*; got 'net/0' at 'the top'\."),
        ({"__metadata__": np.ones(3)}, r"names must be strings .*; got '__metadata__' at 'the top'\."),
        ({"net": jnp.ones(3, jnp.float8_e4m3fn)}, r"safetensors has no float8_e4m3fn; .* Cast it to one of float64, "),
        ({"net": np.ones(3, complex)}, r"safetensors has no complex128; got complex128\[3\] at 'net'\."),
    ],
)
def test_what_cannot_be_written_is_refused(params, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        safetensors.save(tmp_path / "file", NET, params)
    assert not (tmp_path / "file").exists()


def test_without_safetensors_the_error_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for call in (lambda: safetensors.save(tmp_path / "file", NET, {}), lambda: safetensors.load(tmp_path / "file")):
        with pytest.raises(
            ImportError, match=r'got no module .safetensors.*pip install "\.\[interop\]" in the checkout'
        ):
            call()
    with pytest.raises(ImportError, match=r'got no module .flax\.nnx.*pip install "\.\[flax\]"'):
        rs.interop.from_nnx(None)
