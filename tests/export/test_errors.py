"""Wrong arguments of save, predict, init and step are errors that say what is wrong, before anything runs."""

import dataclasses
import importlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from exports import random_params, save_small, sequence


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    def fn(params, xs, mask):
        return params["w"] * xs[0] + mask[0, :, None]

    folder = tmp_path_factory.mktemp("export") / "two"
    examples = [sequence(4, 2), jnp.ones((4, 2), bool)]
    rs.export.save(folder, fn, {"w": jnp.ones(3)}, examples, ["cpu"])
    return rs.export.load(folder)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    net = rs.layer(rs.cells.RNN(4))
    folder = tmp_path_factory.mktemp("export") / "stream"
    rs.export.save(folder, net, random_params(net), [sequence(4, 2)], ["cpu"])
    return rs.export.load(folder)


XS, MASK = np.ones((4, 2, 3), np.float32), np.ones((4, 2), bool)


@pytest.mark.parametrize(
    ("inputs", "named", "error", "message"),
    [
        ([XS], {}, TypeError, "must be 'xs', 'mask', each once; got 1 in order, and none by name"),
        ([XS, MASK], {"mask": MASK}, TypeError, "2 in order, and 'mask' by name"),
        ([XS, MASK, MASK], {}, TypeError, "got 3 in order"),
        ([XS], {"masks": MASK}, TypeError, "got 'masks'. Did you mean 'mask'?"),
        ([XS[0], MASK], {}, ValueError, r"`xs` must be float32\[T,N,3\], of rank 3; got float32\[2,3\], of rank 2"),
        ([XS.astype(np.float64), MASK], {}, TypeError, r"`xs` must be float32\[T,N,3\]; got float64\[4,2,3\]"),
        ([XS, XS[..., 0]], {}, TypeError, r"`mask` must be bool\[T,N\]; got float32"),
        ([XS[..., :2], MASK], {}, ValueError, r"`xs` must be float32\[T,N,3\]; got float32\[4,2,2\]"),
        ([XS, MASK[:3]], {}, ValueError, r"`mask` must be bool\[T,N\] with T = 4, as in another argument; got bool"),
        (
            [XS[:0], MASK[:0]],
            {},
            ValueError,
            r"float32\[T,N,3\] with T of at least 1; got float32\[0,2,3\], with T = 0",
        ),
        ([XS[:, :0], MASK[:, :0]], {}, ValueError, "with N of at least 1; got .*, with N = 0. Skip the call"),
        ([{"a": XS}, MASK], {}, TypeError, "`xs` must have the structure"),
    ],
)
def test_wrong_inputs_of_predict(loaded, inputs, named, error, message):
    with pytest.raises(error, match=message):
        loaded.predict(*inputs, **named)


def test_wrong_arguments_of_a_stream(loaded, stream):
    carry = stream.init(N=2)
    with pytest.raises(ValueError, match=r"N = 2, as in another argument; got float32\[3,3\]"):
        stream.step(carry, jnp.ones((3, 3)))
    with pytest.raises(TypeError, match="`carry` must have the structure"):
        stream.step(carry[0], jnp.ones((2, 3)))
    with pytest.raises(TypeError, match=r"`carry\[0\]` must be float32"):
        stream.step((carry[0].astype(jnp.bfloat16),), jnp.ones((2, 3)))
    for sizes in ({"T": 2}, {"N": 0}):
        with pytest.raises(ValueError, match="at least 1, of the dynamic axes 'N'"):
            stream.init(**sizes)
    for call in (loaded.init, lambda: loaded.step(carry, XS[0])):
        with pytest.raises(ValueError, match="must stream; got Predictor"):
            call()


def test_arguments_are_checked_when_others_have_passed(stream):
    """Types that passed are not checked again; a wrong type after them is."""
    carry = stream.init(N=2)
    for _ in range(2):
        stream.step(carry, XS[0])
        with pytest.raises(ValueError, match="N = 2, as in another argument"):
            stream.step(carry, XS[0, :1])
        with pytest.raises(TypeError, match="`x` must be float32"):
            stream.step(carry, XS[0].astype(np.float64))
        with pytest.raises(TypeError, match="`x` must have the structure"):
            stream.step(carry, XS[0].tolist())


def test_what_cannot_be_exported(tmp_path):
    @dataclasses.dataclass
    class Result:
        ys: jax.Array

    jax.tree_util.register_dataclass(Result, ["ys"], [])
    xs = [jnp.ones((2, 3))]

    def printing(params, xs):
        jax.debug.print("{}", xs)
        return xs

    def calling(params, xs):
        return jax.pure_callback(np.sin, xs, xs)

    def raising(params, xs):
        return rs.while_net(lambda _, carry: carry.sum() < 9, lambda _, carry: carry + 1, xs, params=None, max_steps=3)

    with pytest.raises(TypeError, match=r"`outputs` must consist of arrays.*got Result"):
        rs.export.save(tmp_path / "a", lambda params, xs: Result(xs), {}, xs, ["cpu"])
    for fn, name in ((printing, "debug"), (calling, "pure_callback"), (raising, "callback")):
        with pytest.raises(ValueError, match=f"no side effects.*got '.*{name}"):
            rs.export.save(tmp_path / "a", fn, {}, xs, ["cpu"])
    with pytest.raises(TypeError, match=r"`key` must be an array of numbers.*jax.random.key_data"):
        rs.export.save(tmp_path / "a", lambda params, key: key, {}, [jax.random.key(0)], ["cpu"])
    with pytest.raises(TypeError, match=r"`params\['key'\]` must be an array of numbers"):
        rs.export.save(tmp_path / "a", lambda params, x: x, {"key": jax.random.key(0)}, xs, ["cpu"])
    assert not (tmp_path / "a").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"store": "int4"}, ValueError, "`store` must be one of"),
        ({"platforms": "cpu"}, ValueError, "`platforms` must be some of"),
        ({"platforms": ["gpu"]}, ValueError, "`platforms` must be some of"),
        ({"dynamic": "TN"}, ValueError, "`dynamic` must be names"),
        ({"dynamic": ("a b",)}, ValueError, "`dynamic` must be names"),
        ({"dynamic": {"x": ("N",)}}, ValueError, "must name inputs, 'xs'; got 'x'"),
        ({"inputs": XS}, TypeError, "`inputs` must be a list"),
        ({"inputs": [1.0]}, TypeError, "`xs` must be an array"),
        ({"cell": lambda params, carry, x: (carry, x)}, TypeError, "`cell` must be a cell or net"),
    ],
)
def test_wrong_options_of_save(tmp_path, options, error, message):
    given = {"inputs": [XS], "platforms": ["cpu"]} | options
    with pytest.raises(error, match=message):
        rs.export.save(tmp_path / "a", lambda params, xs: xs, {}, **given)
    assert not (tmp_path / "a").exists()


def test_save_takes_no_folder_of_others(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        save_small(tmp_path, 1.0)
    with pytest.raises(FileExistsError, match="must be a folder, or free"):
        save_small(tmp_path / "notes.txt", 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("missing", ["safetensors", "flatbuffers"])
def test_a_missing_extra_says_what_to_install(tmp_path, monkeypatch, missing):
    extras = importlib.import_module("rnnscan.export.common.extras")

    def imported(name):
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(extras, "importlib", types.SimpleNamespace(import_module=imported))
    with pytest.raises(ImportError, match=rf"got no module '{missing}'. Run pip install \"\.\[export\]\""):
        save_small(tmp_path / "a", 1.0)
