"""Segments of a small loop are steps of a scan, as those of a large one, without `jax.checkpoint`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from benchmarks.small_steps import kalman
from jaxprs import equations_of


pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("segment", [3, (6, 3), 4])
def test_segments_of_a_small_loop_are_steps_of_a_scan(segment):
    use = kalman(2, 1, 12)

    def loss(params):
        final, ys = rs.scan(use.cell, params, use.carry, use.xs, memory=rs.Memory(segment=segment))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((final, ys)))

    equations = [*equations_of(jax.make_jaxpr(jax.grad(loss))(use.params).jaxpr)]
    jax.jvp(jax.grad(loss), (use.params,), (use.params,))
    explanation = rs.explain(use.cell, use.params, use.carry, use.xs, memory=rs.Memory(segment=segment))
    assert explanation.kernel.startswith("one kernel")
    scans = [one.params["step"].jaxpr for one in equations if one.primitive.name == "rnnscan_scan"]
    assert any(inner.primitive.name == "rnnscan_scan" for step in scans for inner in equations_of(step))
    assert {"remat2", "checkpoint"}.isdisjoint(one.primitive.name for one in equations)


def value(run, params):
    return run(params)


def tangent(run, params):
    return jax.jvp(run, (params,), (params,))


def batched(run, params):
    return jax.vmap(run)(jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params))


@pytest.mark.parametrize("transformed", [value, tangent, batched])
def test_results_are_those_without_segments(transformed):
    use = kalman(2, 1, 6)

    def results(memory):
        run = lambda params: rs.scan(use.cell, params, use.carry, use.xs, memory=memory)  # noqa: E731
        return transformed(run, use.params)

    jax.tree.map(np.testing.assert_allclose, results(rs.Memory(segment=4)), results(rs.Memory()))
