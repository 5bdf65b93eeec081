"""The derivative of a softplus is computed as a sigmoid, and equals what JAX computes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from jaxprs import equations_of, running
from rnnscan.engine.passes.sigmoids import sigmoids
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import evaluate
from rnnscan.ir.trace import trace
from tiers import variants


def names(program):
    return [equation.primitive.name for equation in program.equations]


def slopes(function):
    """The function and its derivative at each element."""
    return lambda x: [function(x), jax.vmap(jax.grad(function))(x)]


FUNCTIONS = {"softplus": jax.nn.softplus, "log_sigmoid": jax.nn.log_sigmoid}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_derivative_alone_needs_no_softplus(name):
    program = trace(lambda x: slopes(FUNCTIONS[name])(x)[1:], jnp.ones(3))
    assert {"custom_jvp_call", "exp"} <= {*names(program)}
    assert {"custom_jvp_call", "exp", "select_n"}.isdisjoint(names(sigmoids(program)))
    assert names(sigmoids(program)).count("logistic") == 1
    both = names(sigmoids(trace(slopes(FUNCTIONS[name]), jnp.ones(3))))
    assert both.count("custom_jvp_call") == both.count("logistic") == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_range_is_that_of_the_sigmoid(name, dtype):
    with jax.enable_x64(True):
        large = np.append(np.geomspace(1e-6, np.finfo(dtype).max / 2, 100), np.finfo(dtype).max)
        x = np.concatenate([large, -large, np.linspace(-80, 80, 161), [0, np.inf, -np.inf, np.nan]]).astype(dtype)
        program = sigmoids(trace(slopes(FUNCTIONS[name]), jnp.asarray(x)))
        values = {program.known[0]: jnp.asarray(x)}
        evaluate(program.equations, values)
        own, slope = (np.asarray(values[atom]) for atom in program.stacked)
        written, _ = slopes(FUNCTIONS[name])(jnp.asarray(x))
    np.testing.assert_array_equal(own, written)
    with np.errstate(over="ignore"):
        wide = (1 if name == "softplus" else -1) * x.astype(np.longdouble)
        expected = 1 / (1 + np.exp(-wide))
    # XLA's functions take subnormal numbers for zeros, on some CPUs.
    expected = np.where(expected < np.finfo(dtype).tiny, 0, expected)
    slope = np.where(slope < np.finfo(dtype).tiny, 0, slope)
    np.testing.assert_allclose(slope, expected, rtol=16 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.exp(x - jnp.logaddexp(x, 1.0)),
        lambda x: jax.grad(lambda x: jnp.sum(jnp.logaddexp(x, 2 * x)))(x),
        lambda x: jnp.exp(2 * x - jax.nn.softplus(x)),
        lambda x: jnp.exp(jax.nn.softplus(x) - x),
        lambda x: jnp.where(x == jnp.inf, 1.0, x),
        lambda x: jnp.exp(x - jax.lax.select_n(jnp.arange(3), x, 2 * x, 3 * x)),
    ],
    ids=["of another sum", "of two functions", "of another difference", "turned round", "not zero", "of three cases"],
)
def test_other_programs_stay(function):
    program = trace(lambda x: [function(x)], jnp.ones(3))
    program = replace(program, equations=tuple(needed(program.equations, program.outputs)))
    assert names(sigmoids(program)) == names(program)


def sampled(params, position, x):
    """A step along the slope of a density of log-sigmoids, and a gate by a softplus, as in Mamba."""
    slope = jax.grad(lambda position: jnp.sum(jax.nn.log_sigmoid(position @ params)))(position)
    position = position + 0.1 * slope * jax.nn.softplus(x)
    return position, jnp.sum(position, axis=-1)


def _loss(memory, params, position, xs):
    results = rs.scan(sampled, params, position, xs, memory=memory)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results))


DERIVATIVES = {
    "reverse": lambda loss: jax.value_and_grad(loss, argnums=(0, 1, 2)),
    "forward": lambda loss: jax.jacfwd(loss, argnums=(0, 1)),
    "twice": lambda loss: jax.grad(lambda *given: jnp.sum(jax.grad(loss)(*given) ** 2), argnums=(0, 2)),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", variants({"kept": rs.Memory(), "all": rs.Memory("all", chunk=3)}, ["all"]))
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_a_scan_are_those_of_plain_autodiff(name, memory):
    random = np.random.default_rng(0)
    draw = partial(normal, random, dtype=jnp.float64)
    arguments = draw((3, 4)), draw((2, 3)), draw((7, 2, 3))
    found, expected = (jax.jit(DERIVATIVES[name](partial(_loss, choice)))(*arguments) for choice in (memory, None))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12), found, expected)


def test_no_pass_of_a_scan_needs_a_softplus_for_its_slope():
    """That of the gate is a value that is read, forward."""
    arguments = jnp.ones((3, 4)), jnp.ones((2, 3)), jnp.ones((7, 2, 3))
    loss = partial(_loss, rs.Memory(recompute="all"))
    forward = running(loss)(*arguments)
    both = running(jax.grad(loss, (0, 1, 2)))(*arguments)
    counts = [[one.primitive.name for one in equations_of(program.jaxpr)].count("log1p") for program in (forward, both)]
    assert counts == [1, 2]
