"""The platform that the engine plans for, and a TPU's choice to run a step whole."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import rnnscan as rs
from drawn import normal
from jaxprs import equations_of, is_loop, running, trips_of_loops
from rnnscan.engine.costs import heuristics
from rnnscan.engine.costs.platform import platform_of
from tiers import variants


CELLS = {
    "lstm": rs.cells.LSTM(4),
    "gru": rs.cells.GRU(4),
    "layer-norm": rs.cells.LayerNormLSTM(4),
    "stack": rs.stack(rs.cells.LSTM(4), rs.cells.GRU(5)),
    "slstm": rs.cells.SLSTM(4),
}
MEMORIES = {"kept": rs.Memory(), "all": rs.Memory(recompute="all"), "segments": rs.Memory(segment=4)}
ROWS = 9  # More than a tile of a TPU.


def arguments_of(cell, rows=ROWS, dtype=jnp.float32, steps=7):
    random = np.random.default_rng(0)
    params = cell.init(jax.random.key(0), 3)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * random.normal(size=leaf.shape), dtype), params)
    return params, normal(random, (steps, rows, 3), dtype)


def loss_of(cell, **options):
    def loss(params, xs):
        (*_, last), ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves((last, ys)))

    return loss


def engine_of(cell, rows=ROWS, **options):
    params, xs = arguments_of(cell, rows)
    return rs.explain(cell, params, cell.initial_carry(xs[0]), xs, **options)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", variants(list(CELLS), ["gru"]))
def test_a_whole_step_has_the_gradients_of_plain_autodiff(name, memory):
    cell = CELLS[name]
    given = arguments_of(cell, dtype=jnp.float64)
    loss = loss_of(cell, memory=MEMORIES[memory])
    expected = jax.jit(jax.value_and_grad(loss_of(cell, memory=None), (0, 1)))(*given)
    with rs.tuned_for("tpu"):
        assert engine_of(cell, memory=MEMORIES[memory]).reason == "on a TPU this step runs whole in one loop"
        actual = jax.jit(jax.value_and_grad(loss, (0, 1)))(*given)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), actual, expected)


ORDERS = {
    "forward over reverse": lambda f: lambda *a: jax.jvp(jax.value_and_grad(f, (0, 1)), a, a)[1],
    "forward over the gradient of inputs": lambda f: lambda p, xs: jax.jvp(lambda p: jax.grad(f, 1)(p, xs), (p,), (p,)),
    "forward over forward": lambda f: lambda *a: jax.jvp(lambda *b: jax.jvp(f, b, a)[1], a, a)[1],
    "reverse over reverse": lambda f: jax.grad(
        lambda *a: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(f, (0, 1))(*a))), (0, 1)
    ),
}


def test_a_whole_step_keeps_an_output_that_is_the_carry_once():
    """The backward pass reads h before a step from the output of the step before."""
    cell = CELLS["lstm"]
    params, xs = arguments_of(cell)

    def ys_of(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]

    with rs.tuned_for("tpu"):
        explanation = engine_of(cell)
        assert explanation.reason == "on a TPU this step runs whole in one loop"
        kept = jax.eval_shape(lambda *arguments: jax.vjp(ys_of, *arguments)[1], params, xs)
    assert [leaf.kept for leaf in explanation.carry.values()] == ["as an output", "before every step"]
    stacks = [leaf.shape for leaf in jax.tree.leaves(kept) if leaf.shape == (*xs.shape[:2], 4)]
    assert len(stacks) == 2  # h, which is y, and c.


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", variants(list(MEMORIES), ["kept"]))
@pytest.mark.parametrize("order", ORDERS)
def test_biases_that_a_tpu_repeats_before_the_loop_have_second_derivatives(order, memory):
    """Without the tangent of a bias those of all values were wrong."""

    def loss(how, weights, xs):
        step = lambda weights, c, x: (jnp.tanh(weights[0][None] * c + x + weights[1][None]),) * 2  # noqa: E731
        final, ys = rs.scan(step, weights, jnp.ones((ROWS, 2)), xs, memory=how)
        return jnp.sum(final**2) + jnp.sum(ys**2)

    xs = normal(np.random.default_rng(0), (5, ROWS, 2), jnp.float64)
    given = (jnp.asarray([0.3, 0.6]), jnp.asarray([0.1, -0.2])), xs
    expected = jax.jit(ORDERS[order](partial(loss, None)))(*given)
    with rs.tuned_for("tpu"):
        actual = jax.jit(ORDERS[order](partial(loss, MEMORIES[memory])))(*given)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), actual, expected)


@pytest.mark.usefixtures("x64")
def test_invariant_work_that_reads_a_constant_of_the_step_runs_before_the_loop():
    random = np.random.default_rng(0)
    params = {"scores": random.normal(size=(9, 4)), "table": random.normal(size=(9, 4, 4)), "u": np.eye(4) / 2}
    params, xs = jax.tree.map(jnp.asarray, (params, random.normal(size=(5, 9, 4))))

    def cell(params, carry, x):
        chosen = params["table"][jnp.arange(9), jnp.argmax(params["scores"], 1)]
        hidden = jnp.tanh(carry @ params["u"] + chosen + x)
        return hidden, hidden

    def gradient(memory):
        loss = lambda params: jnp.sum(rs.scan(cell, params, jnp.zeros((9, 4)), xs, memory=memory)[1] ** 2)  # noqa: E731
        return jax.jit(jax.grad(loss))(params)

    expected = gradient(None)
    with rs.tuned_for("tpu"):
        assert rs.explain(cell, params, jnp.zeros((9, 4)), xs).reason == "on a TPU this step runs whole in one loop"
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), gradient(rs.Memory()), expected)


def test_forward_mode_of_a_whole_step():
    cell = CELLS["gru"]
    given = arguments_of(cell)
    expected = jax.jit(lambda *given: jax.jvp(loss_of(cell, memory=None), given, given))(*given)
    with rs.tuned_for("tpu"):
        actual = jax.jit(lambda *given: jax.jvp(loss_of(cell), given, given))(*given)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("platform", variants(["cpu", "gpu", "tpu"], ["gpu"]))
@pytest.mark.parametrize("cell", variants([rs.cells.LSTM, rs.cells.GRU, rs.cells.MinGRU], [rs.cells.GRU]))
def test_bfloat16_products_have_float32_carries_and_sums(cell, platform):
    """Their gradients are those of plain autodiff on a CPU, to the rounding of bfloat16."""
    cell = cell(4, dtype=jnp.bfloat16, carry_dtype=jnp.float32)
    given = arguments_of(cell)

    def gradient(**options):
        def loss(params, xs):
            return jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)[1].astype(jnp.float32) ** 2)

        return jax.value_and_grad(loss, (0, 1))

    expected = jax.jit(gradient(memory=None))(*given)
    with rs.tuned_for(platform):
        program = running(gradient())(*given)
        actual = jax.jit(gradient())(*given)
    for found, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.02 * float(jnp.abs(wanted).max()))
    products = [one for one in equations_of(program.jaxpr) if one.primitive.name == "dot_general"]
    assert {one.outvars[0].aval.dtype for one in products} == {jnp.dtype(jnp.float32)}
    assert any(var.aval.dtype == jnp.bfloat16 for one in products for var in one.invars)
    loops = [one for one in equations_of(program.jaxpr) if one.primitive.name == "scan"]
    results = [(var.aval, one.params["length"]) for one in loops for var in one.outvars]
    assert all(aval.dtype != jnp.bfloat16 or aval.shape[:1] == (length,) for aval, length in results)


def test_a_tpu_adds_up_products_of_16_bits_whose_views_are_gradients_in_float32():
    def cell(weights, carry, x):
        hidden = jnp.tanh(x + carry @ weights.reshape(4, 4))
        return hidden, hidden

    def gradient(dtype, **options):
        random = np.random.default_rng(0)
        weights, xs = normal(random, (16,), dtype) / 2, normal(random, (300, ROWS, 4), dtype)
        start = jnp.zeros((ROWS, 4), dtype)
        run = jax.grad(lambda weights: jnp.sum(rs.scan(cell, weights, start, xs, **options)[1].astype(float) ** 2))
        return running(run)(weights), jax.jit(run)(weights)

    _, expected = gradient(jnp.float32, memory=None)
    with rs.tuned_for("tpu"):
        program, actual = gradient(jnp.bfloat16)
    loops = [one for one in equations_of(program.jaxpr) if one.primitive.name in ("scan", "while")]
    totals = [var.aval for one in loops for var in one.outvars if var.aval.shape == (4, 4)]
    assert {aval.dtype for aval in totals} == {jnp.dtype("float32")}
    np.testing.assert_allclose(actual.astype(float), expected, rtol=0, atol=0.03 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("dtypes", [{}, {"dtype": jnp.bfloat16, "carry_dtype": jnp.float32}], ids=["float32", "mixed"])
def test_no_step_of_a_whole_loop_adds_up_rows(dtypes):
    cell = rs.cells.GRU(4, **dtypes)

    def reductions(**options):
        program = running(jax.grad(loss_of(cell, **options)))(*arguments_of(cell))
        loops = [str(equation) for equation in program.jaxpr.eqns if equation.primitive.name == "scan"]
        return sum(loop.count("reduce_sum") for loop in loops)

    assert reductions(engine="lax") > 0
    with rs.tuned_for("tpu"):
        assert reductions() == 0


def test_products_of_inputs_run_once_for_each_segment_of_a_whole_step():
    cell = CELLS["lstm"]

    def products(memory):
        program = jax.make_jaxpr(loss_of(cell, memory=memory))(*arguments_of(cell))
        scans = [one for one in equations_of(program.jaxpr) if one.primitive.name == "rnnscan_scan"]
        assert len(scans) == (1 if memory.segment is None else 2)
        scan = scans[-1]
        run = scan.primitive.program([var.aval for var in scan.invars], scan.params)
        *_, loop = filter(is_loop, equations_of(run.jaxpr))
        return str(loop).count("dot_general")

    with rs.tuned_for("tpu"):
        assert products(rs.Memory()) == 2
        assert products(rs.Memory(segment=7)) == 1


def test_a_program_for_a_tpu_runs_a_step_whole_wherever_it_is_traced():
    """The same program splits the step on another platform."""
    cell = rs.cells.GRU(8)

    def lowered(platform):
        program = jax.make_jaxpr(loss_of(cell))(*arguments_of(cell))
        (scan,) = [one for one in program.jaxpr.eqns if one.primitive.name == "rnnscan_scan"]
        return str(scan.primitive.program([var.aval for var in scan.invars], scan.params, platform))

    with rs.tuned_for("tpu"):
        expected = lowered("tpu")
    assert lowered("tpu") == expected != lowered("cuda")


def test_each_platform_has_its_own_form_of_matrix_states_wherever_a_program_is_traced():
    cell = rs.cells.GLA(64, heads=2)
    xs = jax.ShapeDtypeStruct((256, ROWS, 8), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), input_size=8))
    carry = jax.eval_shape(lambda xs: cell.initial_carry(xs[0]), xs)

    def lowered(platform):
        traced = jax.jit(lambda *arguments: rs.scan(cell, *arguments)).trace(params, carry, xs)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    platforms = "cpu", "cuda", "tpu"
    expected = {}
    for platform in platforms:
        with rs.tuned_for("gpu" if platform == "cuda" else platform):
            expected[platform] = lowered(platform)
    assert {platform: lowered(platform) for platform in platforms} == expected
    # The chunkwise form has products of chunks, and the loop in reserve.
    assert ["stablehlo.is_finite" in expected[platform] for platform in platforms] == [False, True, True]


def test_a_step_that_is_linear_or_has_one_row_is_split():
    with rs.tuned_for("tpu"):
        assert engine_of(rs.cells.MinGRU(4)).reason == ""
        assert engine_of(rs.cells.LSTM(8), rows=1).reason == ""
        assert engine_of(rs.cells.LSTM(8), engine="fission").reason == ""
        assert "engine: fission; on a TPU this step runs whole in one loop" in str(engine_of(rs.cells.LSTM(8)))
    assert engine_of(rs.cells.LSTM(8)).reason == ""


def test_attention_is_split():
    decoder = rs.attention.decoder(rs.cells.LSTM(4), rs.attention.Additive(encoder_size=4, attention_size=4))
    encoded, xs = jnp.ones((20, ROWS, 4)), jnp.ones((5, ROWS, 3))
    cell = decoder.over(decoder.init(jax.random.key(0), 3), encoded)
    params = decoder.init(jax.random.key(0), 3)
    with rs.tuned_for("tpu"):
        assert rs.explain(cell, params, cell.initial_carry(xs[0]), xs).reason == ""


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        (rs.cells.MinGRU(4), lambda closed: len(trips_of_loops(closed.jaxpr))),
        (rs.cells.GRU(4), lambda closed: str(closed).count("optimization_barrier")),
    ],
    ids=["scans", "barriers"],
)
def test_the_backward_pass_has_the_choices_of_the_forward_pass(cell, count):
    params, xs = arguments_of(cell, steps=40)
    loss = loss_of(cell, memory=rs.Memory(chunk=40))  # Short chunks run their steps one by one.

    def program(context):
        with context:
            total, pull = jax.vjp(loss, params, xs)
        return count(running(pull)(total))

    with rs.tuned_for("gpu"):
        inside = count(running(jax.vjp(loss, params, xs)[1])(1.0))
    assert program(rs.tuned_for("gpu")) == inside != program(rs.tuned_for("cpu"))


@pytest.mark.bad_input
def test_an_unknown_platform():
    with pytest.raises(ValueError, match="must be one of cpu, gpu, tpu; got 'abacus'"):
        rs.tuned_for("abacus")


@pytest.fixture
def on_gpu(monkeypatch):
    """A process whose default backend is a GPU, and which has a CPU too."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def test_the_platform_of_devices(on_gpu):
    cpu = jax.devices("cpu")[0]
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=[cpu])
    committed = jax.device_put(jnp.ones(3), cpu)
    found = []
    jax.jit(lambda x: found.append(platform_of(x)))(jax.device_put(jnp.ones(3), NamedSharding(mesh, PartitionSpec())))
    assert found == [platform_of(committed)] == ["cpu"]
    assert platform_of(jnp.ones(3)) is None
    choices = heuristics.BACKENDS
    assert heuristics.heuristics(jnp.ones(3)) is choices["gpu"]
    assert heuristics.heuristics(committed) is choices["cpu"]
    with jax.default_device(cpu):
        assert heuristics.heuristics() is choices["cpu"]
    with jax.set_mesh(mesh):
        assert heuristics.heuristics() is choices["cpu"]
    with rs.tuned_for("tpu"):
        assert heuristics.heuristics(committed) is choices["tpu"]


def test_a_call_outside_jit_follows_its_arguments(on_gpu):
    seen = []

    def cell(params, carry, x):
        seen.append(heuristics.heuristics())
        return carry + params * x, carry

    arrays = jax.device_put((jnp.ones(3), jnp.ones(3), jnp.ones((4, 3))), jax.devices("cpu")[0])
    rs.scan(cell, *arrays)
    assert set(map(id, seen)) == {id(heuristics.BACKENDS["cpu"])}


def test_an_export_for_another_platform():
    cell = CELLS["lstm"]
    params, xs = arguments_of(cell)

    def module(platform, target):
        def run(params, xs):
            return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]

        with rs.tuned_for(platform):
            return jax.export.export(jax.jit(run), platforms=[target])(params, xs).mlir_module()

    def multiplies_all_inputs_at_once(text):
        return any("dot_general" in line and "tensor<7x9x3xf32>" in line for line in text.splitlines())

    assert multiplies_all_inputs_at_once(module("gpu", "cuda"))
    assert not multiplies_all_inputs_at_once(module("tpu", "tpu"))
