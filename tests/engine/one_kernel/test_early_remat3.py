"""What JAX_REMAT3=1 with jax 0.10.2 cannot differentiate is not made there: a checkpoint around a loop.

That choice is made for every jax here, because the choice is what is tested. The other tests run with the flag itself.
"""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from benchmarks.small_steps import kalman
from matrix_states import LENGTH, SMALL, assert_equal, decayed, linear_attention
from rnnscan import _checks as checks
from rnnscan.engine.call import route
from rnnscan.engine.costs.heuristics import using
from rnnscan.engine.plan import execution_plan
from rnnscan.ir.trace import has_checkpoint


SEGMENTS = rs.Memory(segment=3)
pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.skipif(checks.has_early_remat3(), reason="there is nothing to compare with"),
]


def gradient_of(cell, params, carry, xs, **options):
    def loss(params):
        final, ys = rs.scan(cell, params, carry, xs, **options)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((final, ys)))

    return jax.grad(loss)(params)


def in_both(run, monkeypatch):
    """The results of a function as usual, and as with the early JAX_REMAT3."""
    usual = run()
    for module in (checks, route, execution_plan):
        monkeypatch.setattr(module, "has_early_remat3", lambda: True)
    return usual, run()


def test_segments_of_a_small_loop_are_those_of_a_large_one(monkeypatch):
    use = kalman(2, 1, 7)
    given = use.params, use.carry, use.xs

    def run():
        jaxpr = jax.make_jaxpr(lambda params: gradient_of(use.cell, params, *given[1:], memory=SEGMENTS))(given[0])
        engine = rs.explain(use.cell, *given, memory=SEGMENTS).engine
        return engine, has_checkpoint(jaxpr.jaxpr), gradient_of(use.cell, *given, memory=SEGMENTS)

    (*usual, expected), (*early, found) = in_both(run, monkeypatch)
    assert (usual, early) == (["lax", True], ["fission", False])
    assert_equal(found, expected)


@pytest.mark.large_loops
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(segment=8)], ids=str)
def test_matrix_states_run_step_by_step(memory, monkeypatch):
    state, xs = decayed(LENGTH, keys=False, decays=(0.5, 1))

    def cell(params, state, x):
        new_state, y = linear_attention(None, state, x)
        return new_state, params * y

    def run():
        scale = jnp.float64(0.7)
        with using(SMALL):
            jaxpr = jax.make_jaxpr(lambda scale: gradient_of(cell, scale, state, xs, memory=memory))(scale)
            states = rs.explain(cell, scale, state, xs, memory=memory).states.values()
            gradient = gradient_of(cell, scale, state, xs, memory=memory)
            return any(text.startswith("in chunks") for text in states), has_checkpoint(jaxpr.jaxpr), gradient

    (*usual, expected), (*early, found) = in_both(run, monkeypatch)
    assert (usual, early) == ([True, True], [False, False])
    assert_equal(found, expected)
