"""What is loaded gives the outputs of what was saved, for every size, and is the engine's choice for its platform."""

import importlib
import json
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
import zoo
from drawn import normal
from exports import NET, XS, random_params, sequence


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")

CASES = {
    name: case
    for module in pkgutil.iter_modules(zoo.__path__)
    for name, case in getattr(importlib.import_module(f"zoo.{module.name}"), "CASES", {}).items()
}


@pytest.fixture(scope="module")
def params():
    return random_params(NET)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, params):
    """An export of the net for all platforms, which no test changes."""
    folder = tmp_path_factory.mktemp("export") / "net"
    rs.export.save(folder, NET, params, [XS])
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return rs.export.load(folder)


def modules(folder, function="predict"):
    """The StableHLO text of each platform."""
    (manifest,) = folder.glob("manifest.json")
    programs = json.loads(manifest.read_text())["programs"]
    return {
        platform: jax.export.deserialize(bytearray((folder / names[function]).read_bytes())).mlir_module()
        for platform, names in programs.items()
    }


def assert_equal(tree, expected):
    jax.tree.map(np.testing.assert_array_equal, tree, expected)


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (7, 3)])
def test_outputs_are_equal_bit_for_bit(loaded, params, steps, rows):
    xs = sequence(steps, rows)
    assert_equal(loaded.predict(xs), jax.jit(lambda params: NET(params, xs))(params))
    assert_equal(loaded.predict(xs=np.asarray(xs)), loaded.predict(xs))


def test_steps_equal_the_whole(loaded):
    xs = sequence(5, 2)
    carry, ys = loaded.init(N=2), []
    assert_equal(carry, NET.initial_carry(xs))
    for x in xs:
        carry, y = loaded.step(carry, x)
        ys.append(y)
    last, whole = loaded.predict(xs)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), last, carry)
    np.testing.assert_allclose(jnp.stack(ys), whole, rtol=1e-5, atol=1e-6)


def test_nothing_of_training_and_no_path_is_in_a_program(folder):
    for module in modules(folder).values():
        for part in ("optimization_barrier", "rng", "threefry", "custom_call @x", ".py"):
            assert part not in module
    for file in folder.iterdir():
        assert b"wt-" not in file.read_bytes()
        assert str(folder.parent).encode() not in file.read_bytes()
        assert __file__.encode() not in file.read_bytes()


def test_a_loaded_program_has_no_gradient(loaded):
    with pytest.raises(ValueError, match="VJP"):
        jax.grad(lambda xs: loaded.predict(xs)[1].sum())(sequence(3, 2))


def test_each_platform_has_the_engine_s_choice_for_it(tmp_path):
    net = rs.layer(rs.cells.MinGRU(4))
    params = random_params(net)
    rs.export.save(tmp_path / "a", net, params, [XS], dynamic=(None, "N"))
    lowered = modules(tmp_path / "a")
    loops = {platform: module.count("stablehlo.while") for platform, module in lowered.items()}
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("9, N, 3"), jnp.float32)
    for platform, backend in {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}.items():
        with rs.tuned_for(backend):
            alone = jax.export.export(jax.jit(lambda p, xs: net(p, xs)), platforms=[platform])(params, symbolic)
        assert loops[platform] == alone.mlir_module().count("stablehlo.while"), platform
        assert jax.export.deserialize(
            bytearray(next((tmp_path / "a").glob(f"predict.{platform}-*")).read_bytes())
        ).platforms == (platform,)
    # A linear loop runs step by step on a CPU, and on an accelerator in blocks, whose states are put together.
    joined = {platform: module.count("stablehlo.concatenate") for platform, module in lowered.items()}
    assert joined["cpu"] < joined["cuda"] == joined["tpu"], joined


def test_a_choice_that_the_caller_traces_with_does_not_leak_in(tmp_path):
    net = rs.layer(rs.cells.MinGRU(4))
    options = {"platforms": ["cpu"], "dynamic": (None, "N")}
    rs.export.save(tmp_path / "a", net, random_params(net), [XS], **options)
    with rs.tuned_for("gpu"):
        rs.export.save(tmp_path / "b", net, random_params(net), [XS], **options)
    assert modules(tmp_path / "a") == modules(tmp_path / "b")


def test_inputs_with_different_axes_and_a_pytree_of_outputs(tmp_path):
    net = rs.bidirectional(rs.cells.RNN(4))
    params = {"net": random_params(net), "head": [jnp.ones((8, 2)), None], "step": 3}
    params["step"] = jnp.asarray(3)

    def fn(params, xs, *, seq_lengths):
        _, ys = net(params["net"], xs["a"], seq_lengths=seq_lengths)
        return {"logits": ys @ params["head"][0], "rest": [None, (params["step"], rs.last_valid(ys, seq_lengths))]}

    given = {"xs": {"a": sequence(4, 2)}, "seq_lengths": jnp.array([4, 2])}
    axes = {"xs": ("T", "N"), "seq_lengths": ("N",)}
    rs.export.save(tmp_path / "a", fn, params, given, ["cpu"], axes)
    loaded = rs.export.load(tmp_path / "a")
    xs, lengths = {"a": sequence(6, 3)}, jnp.array([6, 1, 0])
    expected = jax.jit(fn)(params, xs, seq_lengths=lengths)
    assert_equal(loaded.predict(xs, lengths), expected)
    assert_equal(loaded.predict(xs, seq_lengths=lengths), expected)
    assert not loaded.streams
    with pytest.raises(ValueError, match=r"xs.*seq_lengths.*dynamic"):
        rs.export.save(tmp_path / "b", fn, params, given, ["cpu"])


def test_a_function_streams_by_its_cell(tmp_path):
    cell = rs.cells.GRU(4)

    class WithHead:
        def initial_carry(self, x):
            return cell.initial_carry(x)

        def __call__(self, params, carry, x):
            carry, y = cell(params["cell"], carry, x)
            return carry, y @ params["head"]

    step = WithHead()
    params = {"cell": random_params(rs.layer(cell)), "head": jnp.ones((4, 2))}
    fn = lambda params, xs: rs.scan(step, params, step.initial_carry(xs[0]), xs)[1]  # noqa: E731
    rs.export.save(tmp_path / "a", fn, params, [XS], ["cpu"], cell=step)
    loaded = rs.export.load(tmp_path / "a")
    xs = sequence(1, 3)
    np.testing.assert_allclose(loaded.step(loaded.init(N=3), xs[0])[1], loaded.predict(xs)[0], rtol=1e-6)
    with pytest.raises(ValueError, match="must run in pieces"):
        rs.export.save(tmp_path / "b", fn, params, [XS], ["cpu"], cell=rs.bidirectional(cell))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_cell_is_loaded_with_equal_outputs_and_streams(name, tmp_path):
    cell, features = CASES[name].cell, CASES[name].features
    shapes = jax.eval_shape(lambda: cell.init(jax.random.key(0), features[-1]))
    random = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype, 0.5), shapes)

    def run(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, engine="lax")

    example = jax.ShapeDtypeStruct((9, 2, *features), jnp.float32)
    rs.export.save(tmp_path / "a", run, params, [example], ["cpu"], cell=cell)
    loaded = rs.export.load(tmp_path / "a")
    for steps, rows in ((1, 3), (7, 1)):
        xs = normal(random, (steps, rows, *features), jnp.float32)
        expected = jax.jit(run)(params, xs)
        assert_equal(loaded.predict(xs), expected)
        carry = loaded.init(N=rows)
        for x in xs:
            carry, y = loaded.step(carry, x)
        last = jax.tree.map(lambda leaf: leaf[-1], expected[1])
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), y, last)


def test_parameters_of_training_only_are_left_out(tmp_path):
    net = rs.layer(rs.cells.RNN(4))
    params = {"auxiliary": {"kernel": jnp.ones((4, 7))}, "net": random_params(net), "scale": jnp.float32(2)}

    @jax.jit
    def fn(params, xs):
        logits = jax.jit(lambda kernel, ys: (ys, ys @ kernel))(params["auxiliary"]["kernel"], net(params["net"], xs)[1])
        return params["scale"] * logits[0]

    rs.export.save(tmp_path / "a", fn, params, [XS], ["cpu"])
    loaded = rs.export.load(tmp_path / "a")
    names = [one.name for one in loaded.manifest.parameters]
    assert names == ["net/bias", "net/kernel", "net/recurrent_kernel", "scale"]
    assert_equal(loaded.predict(sequence(5, 2)), jax.jit(fn)(params, sequence(5, 2)))


@pytest.mark.parametrize(
    ("memory", "dynamic"),
    [
        (rs.Memory(segment=4), ("T", "N")),
        (rs.Memory(segment=4, recompute="all"), (None, "N")),
        # The annotations of nets have no budget.
        pytest.param(rs.Memory.fit("1MiB"), ("T", "N"), marks=pytest.mark.bad_input),
    ],
    ids=str,
)
def test_memory_choices_leave_nothing_in_a_program(tmp_path, memory, dynamic):
    layer = rs.layer(rs.cells.RNN(4))
    net = rs.chain(layer)
    params = {"layer": random_params(layer), "chain": random_params(net)}

    def fn(params, xs, memory=rs.Memory()):
        return layer(params["layer"], xs, memory=memory)[1] + net(params["chain"], xs, memory=memory)[1]

    rs.export.save(tmp_path / "a", fn, params, [XS], ["cpu"], dynamic)
    rs.export.save(tmp_path / "b", lambda params, xs: fn(params, xs, memory), params, [XS], ["cpu"], dynamic)
    assert modules(tmp_path / "a") == modules(tmp_path / "b")


def test_numpy_s_float64_is_float32_as_in_jax(tmp_path):
    rs.export.save(tmp_path / "a", lambda p, x: p @ x, np.eye(3), [np.ones((3, 2))], ["cpu"], ())
    loaded = rs.export.load(tmp_path / "a")
    assert_equal(loaded.predict(jnp.ones((3, 2))), np.ones((3, 2), np.float32))
    assert [(one.name, str(one.spec)) for one in loaded.manifest.parameters] == [("params", "float32[3,3]")]


@pytest.mark.usefixtures("x64")
def test_wide_types_need_the_option_of_jax(tmp_path):
    params = {"w": jnp.arange(3.0)}
    assert params["w"].dtype == jnp.float64
    rs.export.save(tmp_path / "a", lambda p, x: p["w"] * x, params, [jnp.ones((2, 3))], ["cpu"], ("N",))
    assert rs.export.load(tmp_path / "a").predict(jnp.ones((2, 3))).dtype == jnp.float64
    with jax.enable_x64(False), pytest.raises(ValueError, match="'float64' there, and jax_enable_x64 is off"):
        rs.export.load(tmp_path / "a")
