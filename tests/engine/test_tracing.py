"""How often the Python code of a cell is traced, counted by a side effect of tracing."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs


XS = jnp.ones((8, 2, 3))
OPTIONS = {
    "plain": {},
    "recompute": {"memory": rs.Memory(recompute="all")},
    "segments": {"memory": rs.Memory(segment=3)},
    "padding": {"seq_lengths": jnp.array([8, 5])},
    "resets": {"reset": jnp.zeros((8, 2), bool), "reset_to": jnp.zeros((2, 3))},
    "truncation": {"truncate": 3},
}


def counted(**options):
    """Traces of a forward call, and of a training step."""
    traces = []

    def cell(params, carry, x):
        traces.append(None)
        gates = rs.name(carry @ params + x, "gates")
        hidden = jnp.tanh(gates)
        return hidden, hidden

    def loss(params):
        return rs.scan(cell, params, jnp.zeros((2, 3)), XS, **options)[1].sum()

    params = jnp.ones((3, 3))
    jax.jit(loss).lower(params)
    forward = len(traces)
    jax.jit(jax.grad(loss)).lower(params)
    return forward, len(traces) - forward


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_cell_is_traced_once_for_its_values_and_once_for_its_gradient(options):
    assert counted(**options) == (1, 1)


def test_the_lax_engine_traces_twice_because_names_depend_on_the_memory_choice():
    assert counted(engine="lax")[0] == 2


def test_where_jax_linearizes_each_pass_is_one_call():
    # JAX would trace its loops several times (docs/decisions.md, "A cell is traced once"). The engine knows by a class
    # of JAX's tracers that it linearizes.
    def loss(params):
        return rs.scan(lambda params, h, x: (jnp.tanh(h @ params + x), h), params, jnp.zeros((2, 3)), XS)[1].sum()

    def calls(function):
        equations = jax.make_jaxpr(function)(jnp.ones((3, 3))).eqns
        return [equation.primitive.name for equation in equations].count("rnnscan_call")

    assert calls(jax.grad(loss)) == 2
    assert calls(lambda params: jax.jvp(loss, (params,), (params,))) == 0
