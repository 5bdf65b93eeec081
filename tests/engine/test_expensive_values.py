"""A cell without names: values that take long to compute again are kept, within few bytes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from fuzz.compare import check
from rnnscan.engine.analysis.derivative_reads import read_by_derivatives
from rnnscan.engine.costs.heuristics import BACKENDS, using
from rnnscan.engine.costs.machine import CPU
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.insight.memory_report import memory_report
from rnnscan.ir.program import Program
from rnnscan.ir.trace import trace
from tiers import variants


LENGTH, ROWS, WIDTH = 12, 2, 96


def sorted_noise(params, carry, x):
    """The sort is kept."""
    noise = jnp.sort(x, axis=-1) * jnp.exp(params)
    carry = jnp.tanh(carry * noise)
    return carry, jnp.sum(carry, axis=-1)


def resampled(params, carry, x):
    """The integers by which the carry is read are kept."""
    rank = jnp.cumsum(x > 0.5, axis=-1)
    carry = jnp.sin(jnp.take_along_axis(carry, rank, axis=-1) * params + x)
    return carry, carry[:, 0]


def wave(params, carry, x):
    """A wave equation: the differences of the field are kept in place of the field, which nothing else reads."""
    field, before = carry
    field = field.reshape(ROWS, -1, 8)
    padded = jnp.pad(field, ((0, 0), (1, 1), (1, 1)))
    around = sum(
        padded[:, 1 + row : padded.shape[1] - 1 + row, 1 + column : 9 + column]
        for row, column in ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))
    )
    new = 2 * carry[0] - before + params * (around - 8 * field).reshape(ROWS, -1) + x
    return (new, carry[0]), new[:, 0]


def log_sums(params, carry, x):
    """The result of `logaddexp`, by which its own rule differentiates it, is kept."""
    carry = jnp.logaddexp(carry + params, x) * jnp.float32(0.5)
    return carry, carry[:, 0]


STEPS = {"sort": sorted_noise, "indices": resampled, "wave": wave, "log sums": log_sums}
KEPT = {"sort": "sort", "indices": "select_n", "wave": "sub", "log sums": "custom_jvp_call"}


def arguments_of(name, length=LENGTH):
    random = np.random.default_rng(0)
    width = 4 * WIDTH if name in ("wave", "log sums") else WIDTH
    carry = normal(random, (ROWS, width), jnp.float32)
    carry = (carry, normal(random, (ROWS, width), jnp.float32)) if name == "wave" else carry
    params = jnp.asarray(random.uniform(0.05, 0.15, width), jnp.float32)
    return params, carry, normal(random, (length, ROWS, width), jnp.float32)


def kept_operations(name, *arguments, **options):
    """The operations whose results are kept without a name."""
    step = STEPS[name] if isinstance(name, str) else name
    equations = rs.explain(step, *arguments, **options).equations
    return [equation.operation for equation in equations if equation.backward == "kept"]


@pytest.mark.parametrize("name", STEPS)
def test_an_expensive_value_is_kept_and_its_bytes_are_counted(name):
    arguments = arguments_of(name)
    assert kept_operations(name, *arguments) == [KEPT[name]]
    training = memory_report(STEPS[name], *arguments, compile=False).training
    assert training.kept_bytes == training.counted_bytes
    (row,) = [row for row in training.rows if "without a name" in row.name]
    assert KEPT[name] in row.name
    assert row.bytes == arguments[2].nbytes


@pytest.mark.parametrize("name", ["sort", "indices"])
def test_the_extra_bytes_are_no_more_than_what_is_kept_in_any_case(name):
    arguments = arguments_of(name)
    default, least = (
        memory_report(STEPS[name], *arguments, memory=memory, compile=False).training.kept_bytes
        for memory in (rs.Memory(), rs.Memory(recompute="all"))
    )
    assert least < default <= 2 * least


def test_a_value_in_place_of_the_carry_takes_no_bytes_more():
    # Nothing reads the two fields after the first step, and so they are not kept before each chunk either.
    arguments = arguments_of("wave", length=160)
    default, least = (
        memory_report(wave, *arguments, memory=memory, compile=False).training.kept_bytes
        for memory in (rs.Memory(), rs.Memory(recompute="all"))
    )
    assert default < least
    assert rs.explain(wave, *arguments).carry["[0]"].kept == "before the first step, and not read"


OPTIONS = {
    "plain": {},
    "reversed": {"reverse": True},
    "chunks with a remainder": {"memory": rs.Memory(chunk=5)},
    "segments": {"memory": rs.Memory(segment=4)},
    "lengths": {"seq_lengths": jnp.array([7, LENGTH])},
}
TELLING = ["sort, lengths", "indices, reversed", "wave, plain", "wave, segments", "wave, chunks with a remainder"]


@pytest.mark.parametrize(
    ("name", "options"),
    variants({f"{name}, {one}": (name, OPTIONS[one]) for name in STEPS for one in OPTIONS}, TELLING),
)
def test_values_and_gradients_are_those_of_plain_autodiff(name, options):
    def results_and_gradients(arguments, **options):
        def loss(*arguments):
            results = rs.scan(STEPS[name], *arguments, **options)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results)), results

        return jax.tree.leaves(jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*arguments))

    with jax.enable_x64(True):
        arguments = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), arguments_of(name))
        found = results_and_gradients(arguments, **options)
        expected = results_and_gradients(arguments, **options | {"memory": None})
    for leaf, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", variants([*STEPS], ["wave"]))
def test_forward_mode_rows_and_second_derivatives_agree(name):
    def loss(params, memory):
        carry, ys = rs.scan(STEPS[name], params, *others, memory=memory)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((carry, ys)))

    with jax.enable_x64(True):
        params, *others = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), arguments_of(name))
        tangent = jnp.linspace(-1.0, 1.0, params.size)
        one, other = (
            jax.jit(lambda params, memory=memory: _derivatives(lambda p: loss(p, memory), params, tangent))(params)
            for memory in (rs.Memory(), None)
        )
    for leaf, wanted in zip(one, other, strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", variants([*STEPS], ["wave"]))
def test_gradients_in_windows_are_those_of_the_whole(name):
    def loss(params, carry, xs, windows):
        total = 0.0
        for window in windows:
            carry, ys = rs.scan(STEPS[name], params, carry, xs[window])
            total += sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(ys))
        return total + sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(carry))

    with jax.enable_x64(True):
        arguments = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), arguments_of(name))
        whole, cut = (
            jax.jit(jax.grad(lambda *args, windows=windows: loss(*args, windows), argnums=(0, 1, 2)))(*arguments)
            for windows in ([slice(None)], [slice(0, 5), slice(5, None)])
        )
    for leaf, wanted in zip(jax.tree.leaves(cut), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-11)


def _derivatives(loss, params, tangent):
    """By forward mode, for several rows at once, and of the gradient."""
    many = jax.vmap(jax.grad(loss))(jnp.stack([params, params + tangent / 8]))
    return jax.jvp(loss, (params,), (tangent,))[1], many, jax.jvp(jax.grad(loss), (params,), (tangent,))[1]


def test_exported_gradients_are_the_live_ones():
    def gradient(params):
        return jax.grad(lambda params: jnp.sum(rs.scan(wave, params, *others)[1] ** 2))(params)

    params, *others = arguments_of("wave")
    exported = jax.export.export(jax.jit(gradient))(jax.ShapeDtypeStruct(params.shape, params.dtype))
    np.testing.assert_array_equal(exported.call(params), jax.jit(gradient)(params))


def test_names_leave_no_choice():
    def named(params, carry, x):
        return sorted_noise(params, rs.name(jnp.cos(carry), "cosine"), x)

    arguments = arguments_of("sort")
    assert kept_operations(named, *arguments) == ["cos"]


def test_nothing_is_kept_where_all_is_to_be_computed_again():
    assert kept_operations("sort", *arguments_of("sort"), memory=rs.Memory(recompute="all")) == []


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_accelerators_compute_them_again(platform):
    with using(BACKENDS[platform]):
        assert kept_operations("sort", *arguments_of("sort")) == []


def test_all_expensive_values_of_a_sequence_take_2_mib_at_most():
    each = 4 * ROWS * WIDTH
    for length, kept in ((2**21 // each, ["sort"]), (2**21 // each + 1, [])):
        arguments = jax.eval_shape(lambda length=length: arguments_of("sort", length))
        assert kept_operations("sort", *arguments) == kept


def test_what_is_cheap_is_computed_again():
    def cheap(params, carry, x):
        carry = jnp.tanh(carry * params) + x * jnp.cos(x)
        return carry, carry

    assert kept_operations(cheap, *arguments_of("sort")) == []


def test_no_carry_is_computed_again_because_a_value_is_kept():
    # With the difference kept, the state would follow from it by a loop, which takes longer than reading the state.
    def delta_rule(params, state, x):
        key, value = x
        state = state + key[:, :, None] * (value - jnp.einsum("nkv,nk->nv", state, key))[:, None]
        return state, jnp.einsum("nkv,k->nv", state, params)

    random = np.random.default_rng(0)
    x = (
        normal(random, (LENGTH, ROWS, WIDTH), jnp.float32, scale=0.1),
        normal(random, (LENGTH, ROWS, WIDTH), jnp.float32),
    )
    arguments = normal(random, (WIDTH,), jnp.float32), normal(random, (ROWS, WIDTH, WIDTH), jnp.float32), x
    explanation = rs.explain(delta_rule, *arguments)
    assert explanation.carry[""].kept == "before every step"
    assert kept_operations(delta_rule, *arguments) == []


def test_a_maximum_is_compared_with_its_operands(x64):
    """Its derivative reads the result, the new carry, though both operands are known."""

    def stabilized(kernel, carry, x):
        new = jnp.maximum(carry + jax.lax.lgamma(2 + x @ kernel), x)
        return new, x - new

    random = np.random.default_rng(0)
    sizes = (WIDTH, WIDTH), (16, WIDTH), (LENGTH, 16, WIDTH)
    arguments = [normal(random, size, float, scale=0.2) for size in sizes]
    assert kept_operations(stabilized, *arguments) == ["add"]

    def gradients(scan):
        def loss(*arguments):
            final, ys = scan(*arguments)
            return jnp.sum(jnp.sin(final)) + jnp.sum(jnp.sin(ys))

        return jax.jit(jax.grad(loss, (0, 1, 2)))(*arguments)

    plain = gradients(lambda kernel, *others: jax.lax.scan(lambda *step: stabilized(kernel, *step), *others))
    for own, other in zip(gradients(lambda *all: rs.scan(stabilized, *all)), plain, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-12)


# Of the first 120 seeds, those whose cells keep an expensive value at a price of zero.
KEEPING_SEEDS = [1, 27, 35, 60, 65, 71, 72, 73, 74, 83, 94, 99]


@pytest.mark.parametrize("seed", variants(KEEPING_SEEDS, [60, 83]))
def test_random_cells_agree_whatever_is_kept(monkeypatch, seed):
    free = replace(CPU, ns_per_kept_value=0.0, ns_per_kept_byte=0.0)
    found = []

    def keeping(plan):
        plan = replace(plan, choices=replace(plan.choices, expensive_bytes=1 << 30, machine=free))
        plan = _keeping(plan)
        found.extend(plan.step.expensive)
        return plan

    _keeping = ScanPlan.keeping_expensive_values
    monkeypatch.setattr(ScanPlan, "keeping_expensive_values", keeping)
    check(seed)
    assert found
    jax.clear_caches()


def test_a_larger_value_takes_longer_to_keep():
    assert CPU.nanoseconds_to_keep(1 << 20) > 2 * CPU.nanoseconds_to_keep(1 << 18)


def test_the_derivative_of_a_function_with_a_rule_reads_what_its_rule_reads():
    def read_by(function, *operands):
        equation = next(own for own in trace(lambda *leaves: [function(*leaves)], *operands).equations if own.reads)
        program = Program((equation,), known=equation.reads, stacked=equation.outputs)
        read = {*read_by_derivatives(program)}
        return [value in read for value in (*equation.reads, *equation.outputs)]

    assert read_by(jnp.logaddexp, 1.0, 2.0) == [True, True, True]
    assert read_by(jax.nn.relu, 1.0) == [True, False]


def test_an_equation_takes_as_long_as_what_is_in_it():
    def time_of(function, *operands):
        equations = trace(lambda *leaves: [function(*leaves)], *operands).equations
        return CPU.estimate(equations).nanoseconds

    a = jnp.ones((4, 64))
    wave = jax.custom_jvp(lambda a: jnp.sin(jnp.exp(a)))
    wave.defjvps(lambda tangent, result, a: tangent * jnp.cos(a))
    assert time_of(wave, a) == time_of(lambda a: jnp.sin(jnp.exp(a)), a)
    assert time_of(lambda a: jax.lax.cond(a[0, 0] > 0, jnp.sin, wave, a), a) > time_of(wave, a)
    once, often = (
        time_of(lambda a, n=n: jax.lax.scan(lambda a, _: (wave(a), None), a, length=n)[0], a) for n in (1, 10)
    )
    assert once == time_of(wave, a)
    assert often == 10 * once


def test_a_kept_result_of_a_function_with_a_rule_is_not_computed_again():
    def log_sums_in_loops(memory):
        run = jax.grad(lambda *leaves: jnp.sum(rs.scan(log_sums, *leaves, memory=memory)[1]), argnums=(0, 1, 2))
        return jax.jit(run).lower(*arguments_of("log sums")).compile().as_text().count(" log-plus-one(")

    assert log_sums_in_loops(rs.Memory()) == log_sums_in_loops(None)
    assert log_sums_in_loops(rs.Memory(recompute="all")) > log_sums_in_loops(None)


@pytest.mark.parametrize("cell", [rs.cells.GLA(8), rs.cells.RetNet(8)], ids=["GLA", "RetNet"])
def test_a_part_of_a_value_with_a_name_is_kept_once(cell):
    """Their parts have one name. A small loop keeps values without names beside them."""
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 4))
    xs = jax.ShapeDtypeStruct((64, 3, 4), jnp.float32)
    carry = jax.eval_shape(lambda xs: cell.initial_carry(xs[0]), xs)
    with using(replace(BACKENDS["cpu"], one_kernel=True, small_residuals=1 << 20)):
        report = memory_report(cell, params, carry, xs, compile=False)
    assert report.predicted
    assert report.training.kept_bytes == report.training.counted_bytes
