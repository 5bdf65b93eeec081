"""Which results of a scan or a call within a step have a tangent: those of `lax.scan`, and of JAX's derivative."""

from itertools import product

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend import core
from jax.interpreters import ad

import rnnscan as rs
from rnnscan.engine.analysis.activity import active_outputs, tangents_if_any
from rnnscan.engine.analysis.saving_calls import saving_equation
from rnnscan.engine.loops.calls import differentiate_as, or_exact
from rnnscan.ir.leaves import places, replace_at, split_list
from rnnscan.ir.trace import program_of


def crossing(params, carry, x):
    """One carry leaf is active with the inputs, one with the parameters, one counts, and one takes over another."""
    a, b, count, late = carry
    y = (lax.stop_gradient(a), b * count, late, x.astype(jnp.int32))
    return (a * 0.5 + x, jnp.tanh(b * params), count + 1, a), y


def outer_product(params, state, x):
    """A matrix state."""
    state = params * state + x[:, :, None] * lax.stop_gradient(x)[:, None, :]
    return state, jnp.einsum("nk,nkv->nv", x, state)


CASES = {
    "a scan": (crossing, (jnp.ones(3), jnp.ones(3), jnp.int32(0), jnp.ones(3)), jnp.ones((6, 3)), rs.Memory()),
    "a matrix state": (outer_product, jnp.ones((2, 16, 16)), jnp.ones((64, 2, 16)), rs.Memory()),
}
CASES["segments"] = *CASES["a scan"][:3], rs.Memory("all", segment=2)


def by_lax(step, scan, active):
    """Which results of `lax.scan` over a step have a tangent."""
    found = []

    def run(*active_leaves):
        operands = replace_at(zeros, places(active), active_leaves)
        constants, carry, xs = split_list(operands, [scan.constants, scan.carry])

        def run_step(carry, x):
            return tuple(split_list(core.jaxpr_as_fun(step)(*constants, *carry, *x), [scan.carry]))

        final, ys = lax.scan(run_step, carry, xs, length=scan.length)
        found[:] = (isinstance(leaf, ad.JVPTracer) for leaf in [*final, *ys])
        return final

    of_x = [jnp.zeros((scan.length, *aval.shape), aval.dtype) for aval in step.in_avals[scan.constants + scan.carry :]]
    zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in step.in_avals[: scan.constants + scan.carry]] + of_x
    primals = [zeros[place] for place in places(active)]
    jax.eval_shape(lambda *primals: jax.jvp(run, primals, primals), *primals)
    return found


@pytest.mark.core("derivatives")
@pytest.mark.large_loops
@pytest.mark.parametrize("case", CASES)
def test_results_with_a_tangent_are_those_of_lax_scan(case):
    cell, carry, xs, memory = CASES[case]
    params = jnp.ones(carry[0].shape if case != "a matrix state" else ())
    jaxpr = jax.make_jaxpr(lambda *arguments: rs.scan(cell, *arguments, memory=memory))(params, carry, xs)
    (plain,) = (each for each in program_of(jaxpr).equations if each.name == "rnnscan_scan")
    for equation in filter(None, (plain, saving_equation(plain))):
        step, scan, saving = (equation.params[name] for name in ("step", "scan", "saving"))
        choices = [(False, True) if jnp.issubdtype(atom.dtype, jnp.floating) else (False,) for atom in equation.inputs]
        for active in filter(any, product(*choices)):
            expected = by_lax(step, scan, active)
            expected += [expected[leaf] for leaf in saving.starts] if saving else []
            assert active_outputs(equation, active) == expected, active


def several(x, y, number):
    return [x * y, lax.stop_gradient(x) + jnp.sin(y), number + 1, jnp.cos(x)]


def by_loop(x, y, number):
    return lax.fori_loop(0, 1, lambda _, leaves: several(x, y, number), several(x, y, number))


@pytest.mark.core("derivatives")
@pytest.mark.parametrize(
    "call",
    [
        differentiate_as(several, by_loop),
        differentiate_as(jax.jit(several), by_loop, keeps_values=True),
        or_exact(lambda *leaves: (several(*leaves), [jnp.isfinite(leaves[0])] * 4), several, several),
    ],
    ids=["a reference", "values of its own", "a loop in reserve"],
)
def test_results_of_a_call_with_a_tangent_are_those_of_its_derivative(call):
    (equation,) = program_of(jax.make_jaxpr(call)(1.0, 2.0, 3)).equations
    assert equation.name == "rnnscan_call"
    for active in filter(any, product((False, True), (False, True), (False,))):
        _, expected = tangents_if_any(equation, active)
        assert active_outputs(equation, active) == expected, active
