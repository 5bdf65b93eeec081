"""Parameters with fewer bits: what is restored, the error that the manifest states, and what stays exact."""

import json
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from exports import random_params, sequence


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")

# Each public function, with the run-time type checks.
pytestmark = pytest.mark.typed

quantize = import_module("rnnscan.export.quantize")


def by_loops(weight):
    """int8 with a scale for each output channel, one number after the other."""
    restored = np.zeros_like(weight)
    for channel in range(weight.shape[-1]):
        column = weight[..., channel]
        scale = np.float32(max(abs(number) for number in column.flat) / np.float32(127)) or np.float32(1)
        for place in np.ndindex(column.shape):
            restored[(*place, channel)] = np.float32(round(column[place] / scale)) * scale
    return restored


def test_complex_outputs_have_an_error_too(tmp_path):
    fn = lambda params, xs: (xs @ params["w"]) * (1 + 2j)  # noqa: E731
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(64, 8)), jnp.float32)}
    xs = jnp.ones((3, 64))
    rs.export.save(tmp_path / "net", fn, params, [xs], ["cpu"], dynamic=(None, None), store="int8")
    loaded = rs.export.load(tmp_path / "net")
    largest = np.abs(loaded.predict(xs) - fn(params, xs)).max()
    np.testing.assert_allclose(loaded.manifest.store["largest_error_of_outputs"], largest, rtol=1e-3)


@pytest.mark.parametrize("store", ["bfloat16", "int8"])
def test_a_net_with_fewer_bits(tmp_path, store):
    net = rs.layer(rs.cells.GRU(4))
    params, xs = random_params(net), sequence(5, 2)
    rs.export.save(tmp_path / "a", net, params, [xs], ["cpu"], store=store)
    loaded = rs.export.load(tmp_path / "a")
    assert loaded.step(loaded.init(N=2), xs[0])[1].shape == (2, 4)
    if store == "int8":
        restored = {name: by_loops(np.asarray(leaf)) if leaf.ndim > 1 else leaf for name, leaf in params.items()}
    else:
        restored = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), params)
    expected = jax.jit(lambda params: net(params, xs))(jax.tree.map(jnp.asarray, restored))
    jax.tree.map(np.testing.assert_array_equal, loaded.predict(xs), expected)

    fields = json.loads((tmp_path / "a" / "manifest.json").read_text())
    for one in fields["parameters"]:
        exact = np.asarray(params[one["name"]], np.float64)
        difference = np.asarray(restored[one["name"]], np.float64) - exact
        if store == "int8" and exact.ndim == 1:
            assert (one["stored"], one["error"]) == ("float32", None)
            continue
        assert one["stored"] == store
        assert one["error"]["largest"] == pytest.approx(abs(difference).max())
        assert one["error"]["relative"] == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(exact))
        assert 0 < one["error"]["relative"] < 0.01
    live = jax.jit(lambda params: net(params, xs))(params)
    largest = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(abs(a - b).max()), live, expected)))
    assert fields["store"]["dtype"] == store
    assert fields["store"]["largest_error_of_outputs"] == pytest.approx(largest, rel=1e-3)


def test_edges_of_int8():
    weight = np.zeros((3, 4), np.float32)
    weight[:, 1] = [1e-30, -1e-30, 5e-31]
    weight[:, 2] = [-3e38, 3e38, 0]
    tensors = quantize.encode("w", weight, "int8")
    restored = quantize.decode("w", tensors, "int8", "float32")
    np.testing.assert_allclose(restored, weight, atol=0, rtol=0.01)
    assert tensors["w"].dtype == np.int8
    assert set(quantize.tensor_specs("w", "int8", "float32", (3, 4))) == set(tensors)
    for dtype in ("float16", "bfloat16", "float64"):
        value = np.asarray(np.random.default_rng(0).normal(size=(5, 3))).astype(jnp.dtype(dtype))
        again = quantize.decode("w", quantize.encode("w", value, "int8"), "int8", dtype)
        assert again.dtype == value.dtype
        np.testing.assert_allclose(again.astype(float), value.astype(float), atol=0.02)


def test_what_stays_exact():
    for value in (np.ones((2, 2), np.int8), np.ones((2, 2), np.int32), np.ones((2, 2), np.complex64), np.ones(())):
        for store in ("int8", "bfloat16"):
            expected = "bfloat16" if (value.dtype, store) == (np.float64, "bfloat16") else str(value.dtype)
            assert quantize.stored_dtype(value, store) == expected
    assert quantize.stored_dtype(np.ones(3, np.float16), "bfloat16") == "float16"


@pytest.mark.parametrize(("value", "store"), [(np.nan, "int8"), (np.inf, "bfloat16"), (3.4e38, "bfloat16")])
def test_values_that_would_be_lost(value, store):
    weight = np.full((2, 2), value, np.float32)
    with pytest.raises(ValueError, match=r"must be finite and in the range.*'w', float32\[2,2\]"):
        quantize.encode("w", weight, store)
