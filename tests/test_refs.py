"""Mutable arrays among the arguments of a scan, `jax.new_ref`: as in `lax.scan`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import rnnscan as rs


OPTIONS = {"default": {}, "plain": {"memory": None}, "lax": {"engine": "lax"}}


def plain(cell, params, carry, xs, **_):
    return lax.scan(partial(cell, params), carry, xs)


def in_xs(scan, run):
    """A ref that the step reads and writes at its own step, beside an array."""

    def cell(params, carry, x):
        before = x["ref"][...]
        x["ref"][...] = carry * params
        return carry + before * x["array"], carry

    ref = jax.new_ref(jnp.arange(4.0))
    results = run(lambda params: scan(cell, params, jnp.float32(1), {"ref": ref, "array": jnp.linspace(0.0, 1.0, 4)}))
    return results, ref[...]


def in_params(scan, run):
    """A ref that counts over the steps."""

    def cell(params, carry, x):
        params["ref"][...] += x * carry
        return carry + x * params["weight"], carry

    ref = jax.new_ref(jnp.float32(0))
    results = run(lambda weight: scan(cell, {"ref": ref, "weight": weight}, jnp.float32(1), jnp.arange(4.0)))
    return results, ref[...]


def closed_over(scan, run):
    return in_params(lambda cell, params, *rest: scan(lambda _, *args: cell(params, *args), None, *rest), run)


def local(scan, run):
    """A ref that lives within a step."""

    def cell(params, carry, x):
        ref = jax.new_ref(carry)
        ref[...] = jnp.tanh(ref[...] * params + x)
        return ref[...], ref[...]

    return run(lambda params: scan(cell, params, jnp.float32(0), jnp.arange(4.0)))


RUNS = {
    "eager": lambda function: function(0.5),
    "jit": lambda function: jax.jit(function)(0.5),
    "grad": lambda function: jax.grad(lambda weight: function(weight)[1].sum())(0.5),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("kind", [in_xs, in_params, closed_over, local])
def test_refs_are_those_of_a_plain_scan(kind, run):
    try:
        expected = kind(plain, RUNS[run])
    except Exception as error:  # JAX itself has no such derivative.
        if run != "grad":
            raise
        pytest.skip(f"lax.scan: {type(error).__name__}")
    for options in OPTIONS.values():
        ours = kind(partial(rs.scan, **options), RUNS[run])
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), ours, expected)


def test_refs_among_rows_with_lengths():
    """Padding holds the carry; what a step writes is the caller's."""

    def cell(params, carry, x):
        x[0][...] += carry
        return carry + x[1], carry

    ref = jax.new_ref(jnp.zeros((4, 2)))
    carry, _ = rs.scan(cell, None, jnp.ones(2), (ref, jnp.ones((4, 2))), seq_lengths=jnp.array([2, 4]))
    np.testing.assert_array_equal(carry, [3.0, 5.0])
    np.testing.assert_array_equal(ref[...][:, 1], [1.0, 2.0, 3.0, 4.0])


def test_explain_names_the_engine_of_a_scan_of_refs():
    explained = rs.explain(lambda _, c, x: (c + x[...], x.__setitem__(..., c)), None, 0.0, jax.new_ref(jnp.arange(4.0)))
    assert (explained.engine, explained.reason) == ("lax", "the cell has side effects")


@pytest.mark.parametrize("memory", [rs.Memory(recompute="all"), rs.Memory(segment=2)], ids=str)
def test_refs_are_not_recomputed(memory):
    """`jax.checkpoint` differentiates no step with refs either; this error says it before."""
    with pytest.raises(ValueError, match="a cell with side effects must not be recomputed"):
        in_params(partial(rs.scan, memory=memory), RUNS["eager"])
    with pytest.raises(ValueError, match="a cell with side effects must not be recomputed"):
        in_xs(partial(rs.scan, memory=memory), RUNS["eager"])


@pytest.mark.parametrize("memory", [rs.Memory(recompute="all"), rs.Memory(segment=2)], ids=str)
def test_refs_that_a_step_makes_are_not_recomputed(memory):
    """`jax.checkpoint` differentiates few such steps."""
    for run in RUNS.values():
        with pytest.raises(ValueError, match=r"a cell that makes a ref, .*write `value = value.at\[index\]"):
            local(partial(rs.scan, memory=memory), run)


def test_another_effect_beside_a_ref_that_a_step_makes_is_named():
    def cell(params, carry, x):
        io_callback(lambda _: None, None, x)
        return jax.new_ref(carry)[...], None

    with pytest.raises(ValueError, match="a cell with side effects must not be recomputed"):
        rs.scan(cell, None, 0.0, jnp.arange(4.0), memory=rs.Memory(recompute="all"))
