"""rnnscan export and rnnscan run: folders from a run of rnnscan train and from a module, on arrays and for text."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import rnnscan as rs
from drawn import normal
from rnnscan.cli.app import app
from rnnscan.train import RunDirectory, TrainConfig, begin_language_model, export_language_model
from rnnscan.train.text_run import begin_run


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")

pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.

Command = Callable[..., Result]

CONFIG = TrainConfig(cell="rnn", hidden=8, layers=2, embedding=4)


def refused(result: Result) -> str:
    """The one paragraph that a command was refused with."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def fed(text: str | bytes, *arguments: object) -> Result:
    """Run the command line with this on stdin."""
    return CliRunner(env={"COLUMNS": "500"}).invoke(app, [str(argument) for argument in arguments], input=text)


def random_like(params: Any) -> Any:
    random = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype), params)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `rnnscan train` with a checkpoint of random parameters."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "a run")
    begin_run(run, CONFIG, files=[], sha256="")
    state = begin_language_model(CONFIG)
    run.save(state._replace(step=jnp.int32(7), params=random_like(state.params)))
    return Path(run.path)


@pytest.fixture(scope="module")
def params(trained: Path) -> Any:
    return RunDirectory(trained).restore(begin_language_model(CONFIG)).params


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory, params: Any) -> Path:
    folder = tmp_path_factory.mktemp("export") / "model"
    export_language_model(folder, CONFIG.model, params, ["cpu"])
    return folder


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An exported net of two cells, and its parameters."""
    folder = tmp_path_factory.mktemp("export") / "net"
    net = rs.chain(rs.layer(rs.cells.LSTM(3)), rs.layer(rs.cells.RNN(2)))
    params = random_like(jax.eval_shape(lambda: net.init(jax.random.key(0), 2)))
    rs.export.save(folder, net, params, [jax.ShapeDtypeStruct((4, 2, 2), jnp.float32)], ["cpu"])
    return folder, lambda xs: jax.jit(net)(params, xs)


def sequence(steps: int, rows: int) -> Any:
    return np.random.default_rng(steps).normal(size=(steps, rows, 2)).astype(np.float32)


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def close(given: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(given), expected, rtol=1e-5, atol=1e-6)


# --- export


def test_a_run_becomes_a_language_model(rnnscan: Command, trained: Path, params: Any, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "model"
    result = rnnscan("export", "--checkpoint", trained, "--out", folder, "--platforms", "tpu,cpu", "--store", "int8")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == f"Written to {folder}: predict, init, step, for tpu, cpu."
    assert "parameters as int8, " in result.stdout
    assert result.stdout.splitlines()[-1] == f"Generate text with: rnnscan run {folder} --prompt TEXT"
    loaded = rs.export.load(folder)
    error = loaded.manifest.store["largest_error_of_outputs"]
    text = np.random.default_rng(0).integers(32, 127, (16, 4)).astype(np.int32)
    model = CONFIG.model
    _, hidden = rs.scan(model.cells, params["cells"], model.initial_carry(4), params["embedding"][text])
    difference = np.abs(loaded.predict(text) - model.logits(params, hidden)).max()
    assert 0 < difference <= error * 1.001
    assert loaded.manifest.vocabulary_file in {path.name for path in folder.iterdir()}


def test_a_function_of_a_module(rnnscan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_export.py").write_text(
        "import numpy as np\n"
        "def fn(params, xs):\n    return params * xs\n"
        "XS = np.ones((2, 3), np.float32)\n"
        "def in_order():\n    return fn, np.float32(2), [XS]\n"
        "def by_name():\n"
        "    return {'fn': fn, 'params': np.float32(3), 'inputs': [XS], 'dynamic': (), 'store': 'int8'}\n"
        "def wrong():\n    return fn, {}\n"
        "def unknown():\n    return {'fn': fn, 'params': {}, 'inputs': [XS], 'platform': 'cpu'}\n"
        "def broken():\n    raise KeyError('mine')\n"
    )
    for name, expected, shape in (("in_order", 2, (4, 5)), ("by_name", 3, (2, 3))):
        result = rnnscan("export", f"my_export:{name}", "--out", "saved", "--platforms", "cpu")
        assert result.exit_code == 0, result.output
        close(rs.export.load("saved").predict(np.ones(shape, np.float32)), expected)
    before = {path: path.read_bytes() for path in Path("saved").iterdir()}

    def export(*arguments: str) -> str:
        return refused(rnnscan("export", *arguments, "--out", "saved"))

    assert "must return the arguments of rnnscan.export.save" in export("my_export:wrong")
    assert "got a dictionary of 'fn', 'params', 'inputs', 'platform' from" in export("my_export:unknown")
    assert "has no 'in_ordr'. Did you mean 'in_order'?" in export("my_export:in_ordr")
    assert "SPEC must be a function; got 'my_export:XS', float32[2,3]" in export("my_export:XS")
    assert "no module 'none_such'" in export("none_such:fn")
    assert "--platforms must be some of cpu, cuda, rocm, tpu" in export("my_export:by_name", "--platforms", "gpu")
    assert isinstance(rnnscan("export", "my_export:broken", "--out", "saved").exception, KeyError)
    assert {path: path.read_bytes() for path in Path("saved").iterdir()} == before


def test_what_is_no_run_is_refused(rnnscan: Command, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def export(*arguments: object) -> str:
        message = refused(rnnscan("export", *arguments, "--out", out))
        assert not out.exists()
        return message

    assert "one of SPEC and --checkpoint must be given; got neither" in export()
    assert "got both" in export("module:function", "--checkpoint", trained)
    assert "got no " in export("--checkpoint", tmp_path)
    begin_run(RunDirectory(tmp_path / "begun"), CONFIG, files=[], sha256="")
    assert "Resume it with: rnnscan train --resume --out" in export("--checkpoint", tmp_path / "begun")
    (tmp_path / "begun" / "config.json").write_text("{")
    assert "must hold the options of a run" in export("--checkpoint", tmp_path / "begun")
    out.mkdir()
    (out / "notes.txt").touch()
    assert "notes.txt" in refused(rnnscan("export", "--checkpoint", trained, "--out", out, "--platforms", "cpu"))


# --- text


def test_text_is_that_of_the_live_model(rnnscan: Command, language_model: Path, params: Any, tmp_path: Path) -> None:
    expected = CONFIG.model.sample(params, jax.random.key(5), 30, temperature=0.5)
    options = ["--length", "30", "--temperature", "0.5", "--seed", "5"]
    result = rnnscan("run", language_model, *options, "--out", tmp_path / "text")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "text").read_bytes() == expected
    shown = rnnscan("run", language_model, *options).stdout
    assert shown.endswith("\n")
    assert all(letter.isprintable() or letter in "\n\t" for letter in shown)
    assert shown != rnnscan("run", language_model, *options, "--prompt", "another").stdout


def test_the_likeliest_text_after_a_prompt(rnnscan: Command, language_model: Path, params: Any, tmp_path: Path) -> None:
    prompt, model = "prompt é", CONFIG.model
    carry, drawn = model.initial_carry(1), list(prompt.encode())
    for place in range(len(drawn) + 9):
        carry, hidden = model.cells(params["cells"], carry, params["embedding"][np.array([drawn[place]])])
        if place >= len(prompt.encode()) - 1:
            drawn.append(int(model.logits(params, hidden).argmax()))
    options = ["--prompt", prompt, "--length", "10", "--temperature", "0"]
    for echo, expected in (([], bytes(drawn)), (["--no-echo"], bytes(drawn)[len(prompt.encode()) :])):
        assert rnnscan("run", language_model, *options, *echo, "--out", tmp_path / "text").exit_code == 0
        assert (tmp_path / "text").read_bytes() == expected
    shown, continuation = (rnnscan("run", language_model, *options, *echo).stdout for echo in ([], ["--no-echo"]))
    assert shown == prompt + continuation


def test_wrong_options_of_text(rnnscan: Command, language_model: Path, net: Any) -> None:
    assert "--seed must be given with an exported language model" in refused(rnnscan("run", net[0], "--seed", "1"))
    assert "--no-echo must be given with an exported language model" in refused(rnnscan("run", net[0], "--no-echo"))
    for option in (["--stream"], ["-"], ["--format", "npz"], ["--no-echo", "-"]):
        message = refused(rnnscan("run", language_model, "--prompt", "a", *option))
        assert "text is generated, or inputs are run" in message
    assert "`prompt` must have at least one token" in refused(rnnscan("run", language_model, "--prompt", ""))
    assert "`temperature` must be finite" in refused(rnnscan("run", language_model, "--temperature", "inf"))


# --- arrays


@pytest.mark.large_loops  # The exported program has a batch of any size: its bits are those of large loops.
def test_lines_of_json(net: Any, tmp_path: Path) -> None:
    folder, live = net
    text, file = (
        "\n\n".join(json.dumps({"xs": sequence(*shape).tolist()}) for shape in ((3, 2), (1, 1))),
        tmp_path / "given.jsonl",
    )
    file.write_text(text)
    for result in (fed(text, "run", folder), fed(text, "run", folder, "-"), fed("", "run", folder, file)):
        for line, shape in zip(lines(result), ((3, 2), (1, 1)), strict=True):
            carry, ys = live(sequence(*shape))
            np.testing.assert_array_equal(np.float32(line[1]), ys)
            np.testing.assert_array_equal(np.float32(line[0][0][0]), carry[0][0])
    assert fed("", "run", folder).stdout == ""


@pytest.mark.large_loops  # The exported program has a batch of any size: its bits are those of large loops.
def test_npz_files(rnnscan: Command, net: Any, tmp_path: Path) -> None:
    folder, live = net
    np.savez(tmp_path / "given.npz", xs=sequence(3, 2))
    out = tmp_path / "new" / "results.npz"
    assert rnnscan("run", folder, tmp_path / "given.npz", "--out", out).exit_code == 0
    binary = fed((tmp_path / "given.npz").read_bytes(), "run", folder, "--format", "npz").stdout_bytes
    assert binary == out.read_bytes()
    with np.load(io.BytesIO(binary)) as results:
        np.testing.assert_array_equal(results["1"], live(sequence(3, 2))[1])
        assert set(results) == {"0/0/0", "0/0/1", "0/1/0", "1"}
    assert rnnscan("run", folder, tmp_path / "given.npz", "--out", tmp_path / "results.jsonl").exit_code == 0
    close(json.loads((tmp_path / "results.jsonl").read_text())[1], live(sequence(3, 2))[1])


def test_npz_files_hold_outputs_of_any_name(rnnscan: Command, tmp_path: Path) -> None:
    def save(name: str, outputs: Any) -> Path:
        rs.export.save(tmp_path / name, lambda params, x: outputs(x), {}, [jnp.ones(2)], ["cpu"])
        np.savez(tmp_path / "given.npz", x=np.ones(2, np.float32))
        return tmp_path / name

    folder = save("odd", lambda x: {"file": x, "allow_pickle": x + 1})
    assert rnnscan("run", folder, tmp_path / "given.npz", "--out", tmp_path / "out.npz").exit_code == 0
    with np.load(tmp_path / "out.npz") as results:
        assert set(results) == {"file", "allow_pickle"}
    folder = save("twice", lambda x: {"a": {"b": x}, "a/b": x})
    message = refused(rnnscan("run", folder, tmp_path / "given.npz", "--out", tmp_path / "out.npz"))
    assert "the names of outputs must differ in an npz file; got" in message


def test_a_stream_keeps_its_carry(rnnscan: Command, net: Any, tmp_path: Path) -> None:
    folder, live = net
    xs = sequence(5, 2)
    expected = live(xs)[1]
    text = "".join(json.dumps({"xs": x.tolist()}) + "\n" for x in xs)
    close(lines(fed(text, "run", folder, "--stream")), expected)
    np.savez(tmp_path / "given.npz", xs=xs)
    assert rnnscan("run", folder, tmp_path / "given.npz", "--stream", "--out", tmp_path / "ys.npz").exit_code == 0
    with np.load(tmp_path / "ys.npz") as results:
        close(results["output"], expected)


def test_inputs_of_many_kinds(rnnscan: Command, tmp_path: Path) -> None:
    def fn(params: Any, *, parts: Any, mask: Any) -> Any:
        return {"sum": parts["a"][0] + parts["b"].astype(jnp.bfloat16), "mask": ~mask, "none": None}

    parts = {"a": [jnp.ones(2, jnp.bfloat16)], "b": jnp.ones(2, jnp.int8)}
    rs.export.save(tmp_path / "saved", fn, {}, {"parts": parts, "mask": jnp.ones(2, bool)}, ["cpu"], ("N",))
    given = {"parts": {"a": [[0.5, 2, 3]], "b": [1, -2, 3]}, "mask": [True, False, True]}
    (line,) = lines(fed(json.dumps(given), "run", tmp_path / "saved"))
    assert line == {"sum": [1.5, 0.0, 6.0], "mask": [False, True, False], "none": None}
    arrays = {"parts/a/0": np.float32([0.5, 2, 3]), "parts/b": np.int8([1, -2, 3]), "mask": np.array(given["mask"])}
    np.savez(tmp_path / "given.npz", **arrays)
    result = rnnscan("run", tmp_path / "saved", tmp_path / "given.npz", "--out", tmp_path / "results.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "results.npz") as results:
        assert results["sum"].dtype == np.float32
        np.testing.assert_array_equal(results["sum"], [1.5, 0, 6])

    def wrong(**changed: Any) -> str:
        return refused(fed(json.dumps(given | changed), "run", tmp_path / "saved"))

    assert "line 1, 'mask' must be lists of numbers for bool[N]; got [0, 1, 1]" in wrong(mask=[0, 1, 1])
    assert "line 1, 'parts', 'b' must be lists of numbers for int8[N]; got [1, 2, 300]" in wrong(
        parts=given["parts"] | {"b": [1, 2, 300]}
    )
    assert "got [1.5, 2, 3]" in wrong(parts=given["parts"] | {"b": [1.5, 2, 3]})
    assert "`parts` must have the structure" in wrong(parts={"a": [[1.0, 2.0, 3.0]]})


def test_wrong_inputs(rnnscan: Command, net: Any, tmp_path: Path) -> None:
    folder, out = net[0], tmp_path / "out.jsonl"

    def wrong(text: str | bytes, *options: object) -> str:
        message = refused(fed(text, "run", folder, "--out", out, *options))
        assert not list(tmp_path.glob("out*"))
        return message

    good = json.dumps({"xs": sequence(3, 2).tolist()}) + "\n"
    assert "got Expecting property name" in wrong(good + "{xs: 1}")
    assert "in line 2." in wrong(good + "{xs: 1}")
    assert "must be an object with the inputs by name, xs float32[T,N,2]; got list in line 1" in wrong("[1]")
    assert "line 2: predict: the inputs must be 'xs'; got 'x'. Did you mean 'xs'?" in wrong(good + '{"x": [1]}')
    assert "line 1: predict: the inputs must be 'xs', each once" in wrong("{}")
    assert "line 1, 'xs' must be float32[T,N,2]; got lists of different lengths" in wrong('{"xs": [[1], [1, 2]]}')
    assert "line 1, 'xs' must be lists of numbers" in wrong('{"xs": "a"}')
    assert "of rank 3; got float32[1], of rank 1" in wrong('{"xs": [1]}')
    assert "one step of 'xs' alone; got 'x'" in wrong('{"x": [[1, 2]]}', "--stream")
    step = '{"xs": [[1, 2]]}\n'
    assert "line 2: step: `x` must be" in wrong(step + '{"xs": [[1, 2], [1, 2]]}', "--stream")
    assert "must be whole" in wrong(b"PK\x03\x04 not a zip file")
    assert "an npz file must have the outputs of one call; got 2 lines" in wrong(good * 2, "--format", "npz")
    assert "got 0 lines" in wrong("", "--format", "npz", "--stream")
    for arrays, message in (
        ({"x": sequence(3, 2)}, "got none named 'xs'"),
        ({"xs": sequence(3, 2), "more": np.ones(1)}, "got 'more' too"),
        ({"xs": np.ones((3, 2, 2))}, "the npz file: predict: `xs` must be float32[T,N,2]; got float64[3,2,2]"),
        ({"xs": np.array([object()])}, "arrays of numbers; got Object arrays cannot be loaded"),
    ):
        np.savez(tmp_path / "given.npz", **arrays)
        assert message in wrong((tmp_path / "given.npz").read_bytes())
    assert "No such file" in wrong("", tmp_path / "none.npz")
    assert "there must be a folder" in refused(rnnscan("run", tmp_path / "none"))
    assert "--out must be a file; got the folder" in refused(fed(good, "run", folder, "--out", tmp_path))
    (tmp_path / "file").touch()
    assert "--out must be in a folder; got" in refused(fed(good, "run", folder, "--out", tmp_path / "file" / "out"))


def test_a_function_without_steps_does_not_stream(rnnscan: Command, tmp_path: Path) -> None:
    rs.export.save(tmp_path / "saved", lambda params, x: 1j * x, {}, [jnp.ones(2)], ["cpu"], ())
    assert "with a function that streams" in refused(rnnscan("run", tmp_path / "saved", "--stream"))
    assert "JSON has no complex numbers" in refused(rnnscan("run", tmp_path / "saved"))
