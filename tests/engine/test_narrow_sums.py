"""Gradients of parameters of 16 bits are summed in float32 over segments and windows, too, and rounded once."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.engine.costs.heuristics import BACKENDS, using
from tiers import variants


STEPS, ROWS, UNITS = 1024, 2, 8
SEGMENTS = {"sqrt": "sqrt", "16": 16, "nested": (64, 8), "remainder": 60}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def cell(params, carry, x):
    carry = jnp.tanh(params["recurrent"] * carry + x @ params["kernel"] + params["bias"])
    return carry, carry


def arguments(dtype):
    random = np.random.default_rng(0)
    params = {
        "recurrent": random.normal(size=UNITS) * 0.5,
        "kernel": random.normal(size=(4, UNITS)),
        "bias": random.normal(size=UNITS),
    }
    arrays = params, np.zeros((ROWS, UNITS)), random.uniform(0.5, 1.5, (STEPS, ROWS, 4))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), arrays)


def loss(params, carry, xs, **options):
    return rs.scan(cell, params, carry, xs, **options)[1].astype("float64").sum() / STEPS


def gradient(**options):
    return jax.grad(lambda *arrays: loss(*arrays, **options))


def mapped(**options):
    """Over sequences, whose parameters are their own, and then over all of them together."""

    def run(params, carry, xs):
        several = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)
        own = jax.vmap(gradient(**options), (0, None, None))(several, carry, xs)
        both = jnp.stack([xs, -xs])
        shared = jax.grad(lambda params: jax.vmap(lambda xs: loss(params, carry, xs, **options))(both).sum())(params)
        return own, shared

    return run


def forward(**options):
    def run(params, carry, xs):
        with_params = lambda params: gradient(**options)(params, carry, xs)  # noqa: E731
        return jax.jvp(with_params, (params,), (params,))

    return run


def linearized(**options):
    def run(params, carry, xs):
        value, tangents = jax.linearize(lambda params: loss(params, carry, xs, **options), params)
        return jax.linear_transpose(tangents, params)(jnp.ones_like(value))

    return run


FUNCTIONS = {"grad": gradient, "vmap": mapped, "jvp of grad": forward, "linearize": linearized}


def error(found, exact):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    return max(np.abs(np.asarray(leaf, "float64") - wanted).max() / np.abs(wanted).max() for leaf, wanted in pairs)


CASES = {f"{function}, {segment}": (function, SEGMENTS[segment]) for function in FUNCTIONS for segment in SEGMENTS}
TELLING = ["grad, sqrt", "grad, nested", "vmap, 16", "jvp of grad, sqrt", "linearize, remainder"]


@pytest.mark.parametrize(("function", "segment"), variants(CASES, TELLING))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_segments_are_as_exact_as_one_scan(dtype, function, segment):
    narrow = arguments(dtype)
    exact = jax.tree.map(lambda leaf: leaf.astype("float64"), narrow)
    wanted = jax.jit(FUNCTIONS[function](engine="lax", memory=None))(*exact)
    found, whole = (
        jax.jit(FUNCTIONS[function](memory=memory))(*narrow) for memory in (rs.Memory(segment=segment), rs.Memory())
    )
    jax.tree.map(lambda leaf, other: np.testing.assert_equal(leaf.dtype, other.dtype), found, whole)
    assert error(found, wanted) <= error(whole, wanted)


@pytest.mark.parametrize("segment", [(64, 8), 60])
def test_second_gradients_go_through_the_copies_of_narrow_parameters(segment):
    """A scan around segments does not keep them: they are made of the parameters again."""
    params, carry, xs = arguments("bfloat16")

    def second(memory):
        def along(params):
            gradients = gradient(memory=memory)(params, carry, xs)
            return sum(jnp.sum(jnp.sin(leaf.astype("float32"))) for leaf in jax.tree.leaves(gradients))

        return jax.jit(jax.grad(along))(params)

    assert error(second(rs.Memory(segment=segment)), second(rs.Memory())) < 1e-2


def state(params, state, x):
    """A matrix state of its inputs, whose parameters are narrow."""
    keys, values = x @ params["kernel"].astype("float32"), x @ params["value"].astype("float32")
    state = 0.9 * state + keys[:, :, None] * values[:, None, :]
    return state, jnp.einsum("nk,nkv->nv", keys, state)


@pytest.mark.parametrize("segment", [None, 128, 256, (512, 256)])
def test_gradients_of_a_matrix_state_are_rounded_once(segment):
    """Windows have 128 steps. Rounded after each, the gradients would have an error of 4e-3."""
    random = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape) / 4, "float32")  # noqa: E731
    narrow = {"kernel": draw(8, 32).astype("bfloat16"), "value": draw(8, 32).astype("bfloat16")}
    xs = draw(2048, 2, 8)

    def gradient_of(params, **options):
        def loss(params):
            return rs.scan(state, params, jnp.zeros((2, 32, 32), "float32"), xs, **options)[1].sum()

        return jax.jit(jax.grad(loss))(params)

    wanted = gradient_of(jax.tree.map(lambda leaf: leaf.astype("float32"), narrow), engine="lax", memory=None)
    found = gradient_of(narrow, memory=rs.Memory(segment=segment))
    for name, leaf in wanted.items():
        difference = np.asarray(found[name], "float64") - leaf
        assert np.linalg.norm(difference) < 2.5e-3 * np.linalg.norm(leaf), name


@pytest.mark.core("the engine")
@pytest.mark.parametrize("platform", [*BACKENDS])
def test_gradients_of_parameters_that_a_step_casts_to_float16(platform):
    """Those of each step are below 65504, and of all steps above."""
    steps, rows, size, scale = 64, 8, 64, 1024.0

    def cell(params, hidden, x):
        hidden = jnp.tanh(hidden * params["rate"] + x)
        kernel, bias = (params[name].astype(jnp.float16) for name in ("kernel", "bias"))
        return hidden, (x.astype(jnp.float16) @ kernel + bias).astype(jnp.float32)

    random = np.random.default_rng(0)
    shapes = {"kernel": (size, size), "rate": (size,), "bias": (size,)}
    params = {name: jnp.asarray(random.uniform(0.5, 1, shape), jnp.float32) for name, shape in shapes.items()}
    carry, xs = jnp.zeros((rows, size)), jnp.asarray(random.uniform(0.5, 1, (steps, rows, size)), jnp.float32)

    def gradient(scan):
        return jax.jit(jax.grad(lambda params: scale * jnp.sum(scan(params)[1]))).lower(params).compile()

    by_loop = gradient(lambda params: jax.lax.scan(lambda carry, x: cell(params, carry, x), carry, xs))
    with using(replace(BACKENDS[platform], one_kernel=False)):
        by_engine = gradient(lambda params: rs.scan(cell, params, carry, xs))
    found, expected = by_engine(params), by_loop(params)
    for name in ("kernel", "bias"):
        assert np.max(expected[name]) > np.finfo(np.float16).max
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3)
    # No gradient of the kernel is stacked over a chunk.
    assert by_engine.memory_analysis().temp_size_in_bytes < 2 * by_loop.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("platform", [*BACKENDS])
def test_gradients_of_a_narrow_weight_that_a_step_scales(platform, dtype):
    def scaled(params, hidden, x):
        hidden = jnp.tanh(hidden @ (params["kernel"] * params["scale"]) + x)
        return hidden, hidden

    def of(dtype):
        shapes = {"kernel": (8, 8), "scale": (8,), "carry": (4, 8), "xs": (12, 4, 8)}
        given = {name: np.random.default_rng(len(name)).normal(size=shape) * 0.3 for name, shape in shapes.items()}
        rounded = {name: jnp.asarray(leaf, "bfloat16").astype(dtype) for name, leaf in given.items()}
        return {name: rounded[name] for name in ("kernel", "scale")}, rounded["carry"], rounded["xs"]

    def gradient(scan, params, carry, xs):
        return jax.jit(jax.grad(lambda params: jnp.sum(scan(params, carry, xs)[1].astype(float) ** 2)))(params)

    expected = gradient(lambda params, carry, xs: jax.lax.scan(partial(scaled, params), carry, xs), *of(float))
    with using(replace(BACKENDS[platform], one_kernel=False)):
        found = gradient(partial(rs.scan, scaled), *of(dtype))
    for name, wanted in expected.items():
        assert found[name].dtype == dtype
        np.testing.assert_allclose(found[name].astype(float), wanted, atol=0.03 * np.max(np.abs(wanted)))
