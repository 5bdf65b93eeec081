"""Which results of a scan within a step have a tangent: as JAX's own derivative finds."""

from itertools import product

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.engine.analysis.probe import tangents_if_any
from rnnscan.engine.analysis.saving_calls import moving_results, saving_equation
from rnnscan.ir.trace import program_of


def crossing(params, carry, x):
    """One carry leaf moves with the inputs, one with the parameters, one counts, and one takes over another."""
    a, b, count, late = carry
    y = (lax.stop_gradient(a), b * count, late, x.astype(jnp.int32))
    return (a * 0.5 + x, jnp.tanh(b * params), count + 1, a), y


def outer_product(params, state, x):
    """A matrix state, which runs in windows."""
    state = params * state + x[:, :, None] * lax.stop_gradient(x)[:, None, :]
    return state, jnp.einsum("nk,nkv->nv", x, state)


CASES = {
    "a scan": (crossing, (jnp.ones(3), jnp.ones(3), jnp.int32(0), jnp.ones(3)), jnp.ones((6, 3)), rs.Memory()),
    "a matrix state": (outer_product, jnp.ones((2, 16, 16)), jnp.ones((64, 2, 16)), rs.Memory()),
}
CASES["segments"] = *CASES["a scan"][:3], rs.Memory("all", segment=2)


@pytest.mark.core("derivatives")
@pytest.mark.parametrize("case", CASES)
def test_results_with_a_tangent_are_those_of_the_derivative(case):
    cell, carry, xs, memory = CASES[case]
    params = jnp.ones(carry[0].shape if case != "a matrix state" else ())
    jaxpr = jax.make_jaxpr(lambda *arguments: rs.scan(cell, *arguments, memory=memory))(params, carry, xs)
    (plain,) = (each for each in program_of(jaxpr).equations if each.name == "rnnscan_scan")
    for equation in filter(None, (plain, saving_equation(plain))):
        choices = [(False, True) if jnp.issubdtype(atom.dtype, jnp.floating) else (False,) for atom in equation.inputs]
        for moving in filter(any, product(*choices)):
            traced = tangents_if_any(equation, moving)
            assert traced is not None
            assert moving_results(equation, moving) == traced[1], moving
