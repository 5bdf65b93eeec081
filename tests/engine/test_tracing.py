"""How often the Python code of a cell is traced, counted by a side effect of tracing."""

import cProfile
import pstats
from pathlib import Path

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


def test_each_pass_is_one_scan_of_the_step():
    def loss(params):
        return rs.scan(lambda params, h, x: (jnp.tanh(h @ params + x), h), params, jnp.zeros((2, 3)), XS)[1].sum()

    def scans(function):
        equations = jax.make_jaxpr(function)(jnp.ones((3, 3))).eqns
        return [equation.primitive.name for equation in equations if "scan" in equation.primitive.name]

    assert scans(jax.grad(loss)) == ["rnnscan_scan", "rnnscan_cotangent_scan"]
    assert scans(lambda params: jax.jvp(loss, (params,), (params,))) == ["rnnscan_joint_scan"]


@pytest.mark.parametrize("engine", ["fission", "lax"])
def test_a_jitted_function_without_names_is_traced_once_for_all_scans(engine):
    traces = []

    @jax.jit
    def block(w, h):
        traces.append(None)
        return jnp.tanh(h @ w)

    def loss(w):
        h = jnp.ones((2, 3))
        for _ in range(4):
            h, _ = rs.scan(lambda w, h, x: (block(w, h) + x, h), w, h, XS, engine=engine)
        return h.sum()

    jax.jit(loss).lower(jnp.eye(3))
    assert len(traces) == 1
    jax.jit(jax.grad(loss)).lower(jnp.eye(3))
    assert len(traces) == 1


def test_a_jitted_function_with_names_is_traced_for_each_scan():
    """Each scan reads the names of its own trace, also after scans that read none."""
    unnamed = jax.jit(lambda w, h: h * w[0])
    product = jax.jit(lambda w, h: rs.name(unnamed(w, h) @ w, "product"))

    def named(w, h, x):
        # The other name comes first, so the product has another position.
        x = rs.name(jnp.sin(x), "input") if x.shape[0] == 4 else x
        h = jnp.tanh(product(w, h)) + x
        return h, h

    def nameless(w, h, x):
        return unnamed(w, h), x

    def kept(rows, recompute):
        arguments = jnp.eye(3), jnp.ones((rows, 3)), jnp.ones((5, rows, 3))
        rs.scan(nameless, *arguments)
        equations = rs.explain(named, *arguments, memory=rs.Memory(recompute=recompute)).equations
        return [equation.operation for equation in equations if equation.backward == "kept"]

    assert kept(2, ()) == ["dot_general"]
    assert kept(4, ()) == ["sin", "dot_general"]
    assert kept(4, ("product",)) == ["sin"]
    assert kept(2, ("product",)) == []
    assert kept(2, ()) == ["dot_general"]


@pytest.mark.parametrize("derivative", [lambda run: run, jax.grad], ids=["value", "gradient"])
def test_the_engines_calls_grow_linearly_with_the_leaves_of_the_carry(derivative):
    """A sum over all leaves made each of its terms look at all terms before it."""

    def cell(params, carry, x):
        carry = [jnp.tanh(leaf * params + x) for leaf in carry]
        return carry, sum(carry)

    def calls(leaves):
        run = derivative(lambda params: rs.scan(cell, params, [jnp.ones(2)] * leaves, jnp.ones((7, 2)))[1].sum())
        with cProfile.Profile() as profile:
            jax.make_jaxpr(run)(0.5)
        counts = pstats.Stats(profile).stats.items()
        return sum(count for (file, *_), (count, *_) in counts if file.startswith(str(Path(rs.__file__).parent)))

    calls(3)
    assert calls(240) < 4.1 * calls(60)
