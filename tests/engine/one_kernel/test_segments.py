"""Segments of a small loop are steps of a scan, as those of a large one: no checkpoint is around a loop.

With `JAX_REMAT3=1` jax 0.10.2 cannot differentiate one. In the step of the loop a checkpoint says what is kept. With
that flag only JAX's own loops lower it, so that such a loop runs as a large one.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat3
import rnnscan as rs
from benchmarks.small_steps import kalman
from jaxprs import equations_of, is_loop
from rnnscan.ir.trace import has_checkpoint


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
    if remat3.IS_ON:
        assert explanation.engine == "fission"
        return
    assert explanation.engine == "lax"
    assert {"rnnscan_scan", "scan"} <= {equation.primitive.name for equation in equations}
    checkpointed = [one.params["jaxpr"] for one in equations if one.primitive.name in ("remat2", "checkpoint")]
    assert not any(is_loop(inner) for jaxpr in checkpointed for inner in equations_of(jaxpr))
    assert any(has_checkpoint(one.params["jaxpr"]) for one in equations if one.primitive.name == "scan")


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
