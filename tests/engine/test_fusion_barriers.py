"""Loops on a CPU write a costly value that XLA would compute several times in one kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import rnnscan as rs
from rnnscan.engine.analysis import fusion_barriers as module
from rnnscan.engine.analysis.fusion_barriers import fusion_barriers
from rnnscan.engine.costs.heuristics import BACKENDS, using
from rnnscan.engine.costs.machine import CPU
from rnnscan.engine.run.runner import written
from rnnscan.ir.trace import trace


def shifted(a, by):
    return jnp.pad(a, ((0, 0), (by, 0)), constant_values=-1e5)[:, :-by]


def soft_maximum(params, scores, x):
    """The forward pass of CTC: each score is the log of a sum over three before it."""
    two_back = jnp.where(params > 0, shifted(scores, 2), -1e5)
    scores = x + jnp.logaddexp(jnp.logaddexp(scores, shifted(scores, 1)), two_back)
    return scores, jnp.logaddexp(scores[:, -1], scores[:, -2])


def number_of_barriers(function, *shapes):
    types = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return len(fusion_barriers(trace(function, *types).equations, CPU))


def sine_and_shifted(a):
    a = jnp.sin(a)
    return [a + shifted(a, 1)]


def gates(a):
    a = jnp.exp(a)
    return [a[:, :48] * a[:, 48:]]


@pytest.mark.parametrize(
    ("function", "shape", "count"),
    [
        (sine_and_shifted, (16, 96), 1),
        (lambda a: [shifted(jnp.logaddexp(a, 0.0), 1) + shifted(jnp.logaddexp(a, 0.0), 2)], (16, 96), 0),
        (lambda a: [shifted(jnp.exp(a), 1)], (16, 96), 0),
        (lambda a: [2 * a + shifted(2 * a, 1)], (16, 96), 0),
        (lambda a: [jnp.exp(a) @ jnp.ones((96, 96)) + shifted(jnp.exp(a) @ jnp.ones((96, 96)), 1)], (16, 96), 0),
        (gates, (16, 96), 0),
        (sine_and_shifted, (2, 4), 0),
    ],
    ids=["shared", "not shared", "read once", "cheap", "behind a product", "gates", "small"],
)
def test_what_a_kernel_would_compute_twice_is_written(function, shape, count):
    assert number_of_barriers(function, shape) == count


def arguments(rows=4, width=33, length=9):
    random = np.random.default_rng(0)
    params, carry, xs = (random.normal(size=shape) for shape in ((rows, width), (rows, width), (length, rows, width)))
    return jnp.asarray(params), jnp.asarray(carry), jnp.asarray(xs)


def gradient(scan):
    def loss(params, carry, xs):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(scan(params, carry, xs)))

    return jax.jit(jax.value_and_grad(loss, argnums=(1, 2)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=4)])
def test_values_and_gradients_are_those_of_the_plain_scan(memory):
    run = gradient(lambda *leaves: rs.scan(soft_maximum, *leaves, memory=memory))
    plain = gradient(lambda params, carry, xs: lax.scan(lambda c, x: soft_maximum(params, c, x), carry, xs))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), run(*arguments()), plain(*arguments())
    )


def kernels_that_are_called(platform):
    with using(BACKENDS[platform]):
        run = gradient(lambda *leaves: rs.scan(soft_maximum, *leaves, memory=rs.Memory(recompute="all")))
        return run.lower(*arguments(16, 97)).as_text().count("inlineable")


def test_only_loops_on_a_cpu_are_written_so():
    assert kernels_that_are_called("cpu")
    assert not kernels_that_are_called("gpu")


def test_xla_keeps_the_barrier():
    def kernels_between(barrier):
        compiled = jax.jit(lambda a: shifted(barrier(jnp.exp(a)), 1)).lower(jnp.ones((16, 97))).compile()
        return compiled.as_text().count(" call(")

    assert kernels_between(written) == 1
    assert kernels_between(lax.optimization_barrier) == 0


@pytest.mark.usefixtures("x64")
def test_a_barrier_is_an_identity_for_derivatives():
    check_grads(lambda a: jnp.sin(written(jnp.cos(a))), (jnp.linspace(-1.0, 1.0, 6).reshape(2, 3),), 2)


def test_the_search_takes_time_with_the_number_of_equations(monkeypatch):
    """Each barrier follows again only what is made after its value."""
    follow, followed = module._read, []
    monkeypatch.setattr(module, "_read", lambda *arguments: followed.append(1) or follow(*arguments))

    def work(layers):
        def function(a):
            for _ in range(layers):
                a = sine_and_shifted(a)[0]
            return [a]

        followed.clear()
        assert number_of_barriers(function, (16, 96)) == layers
        return len(followed)

    assert work(40) < 2.2 * work(20)
