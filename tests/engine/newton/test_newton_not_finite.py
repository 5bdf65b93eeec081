"""Where Newton's method solves a loop, a NaN or infinity before a reset reaches nothing after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.newton import Newton
from tiers import variants


STEPS, ROWS, UNITS = 24, 3, 2
NEWTON = Newton(chunk=16)
RESET = jnp.zeros((STEPS, ROWS), bool).at[6, :2].set(True).at[20, 0].set(True)
# In rows that a reset clears, and in the last one, which has none.
PLANTED = {"nan": (4, 0, jnp.nan), "inf": (3, 1, jnp.inf), "overflow": (18, 0, 1e30), "no reset": (17, 2, jnp.nan)}


def one_leaf(params, carry, x):
    """The derivative is not finite where x is not, though values are: tanh(inf) is 1."""
    (hidden,) = carry
    hidden = jnp.tanh(params * hidden + x * x * hidden)
    return (hidden,), hidden


def two_leaves(params, carry, x):
    hidden, state = carry
    state = jax.nn.sigmoid(params * hidden + x) * state + jnp.tanh(x * hidden)
    hidden = jnp.tanh(state * x)
    return (hidden, state), hidden


def linear_block(params, carry, x):
    """One linear loop of two leaves, which needs no iterations."""
    a, b = carry
    a, b = 0.5 * a - params * x * b, 0.3 * b + x * a + x
    return (a, b), a


CELLS = {"one leaf": (one_leaf, 1), "two leaves": (two_leaves, 2), "linear block": (linear_block, 2)}


def total(tree):
    """A loss that gives a value that is not finite no cotangent."""
    return sum(jnp.sum(jnp.where(jnp.isfinite(leaf), leaf, 0)) for leaf in jax.tree.leaves(tree))


def gradient(f):
    return jax.grad(lambda *a: total(f(*a)), (0, 1, 2))


def linearized(f):
    def call(*a):
        results, tangents = jax.linearize(f, *a)
        return results, tangents(*a)

    return call


FUNCTIONS = {
    "values": lambda f: f,
    "jvp": lambda f: lambda *a: jax.jvp(f, a, a),
    "jvp without jit": lambda f: lambda *a: jax.jvp(f, a, a),
    "linearize": linearized,
    "grad": gradient,
    "jvp of grad": lambda f: lambda *a: jax.jvp(gradient(f), a, a),
    "grad of grad": lambda f: gradient(gradient(f)),
    "vmap of jvp": lambda f: jax.vmap(lambda *a: jax.jvp(f, a, a), in_axes=(0, None, None)),
    "vmap of grad": lambda f: jax.vmap(gradient(f), in_axes=(None, 0, None)),
}


def results(name, function, newton, planted):
    cell, leaves = CELLS[name]
    random = np.random.default_rng(0)
    xs = random.normal(size=(STEPS, ROWS, UNITS)).astype("float32")
    for step, row, value in planted:
        xs[step, row, 1] = value
    carry = tuple(jnp.asarray(random.normal(size=(ROWS, UNITS)), jnp.float32) for _ in range(leaves))
    reset_to = jnp.full((ROWS, UNITS), 0.25)
    params = jnp.asarray([0.7, 0.4])
    if function == "vmap of jvp":
        params = jnp.stack([params, -params])
    if function == "vmap of grad":
        carry = tuple(jnp.stack([leaf, -leaf]) for leaf in carry)
    options = {"parallel": newton} if newton else {"engine": "lax"}

    def run(params, carry, xs):
        return rs.scan(cell, params, carry, xs, reset=RESET, reset_to=(reset_to,) * leaves, **options)

    call = FUNCTIONS[function](run)
    return (call if "without jit" in function else jax.jit(call))(params, carry, xs)


EVERY = {f"{cell}, {function}": (cell, function) for cell in CELLS for function in FUNCTIONS}


TELLING = [
    "one leaf, jvp",
    "one leaf, linearize",
    "one leaf, grad",
    "two leaves, jvp without jit",
    "two leaves, jvp of grad",
    "two leaves, vmap of jvp",
    "linear block, grad of grad",
]


@pytest.mark.core("values that are not finite")
@pytest.mark.parametrize(("name", "function"), variants(EVERY, TELLING))
@pytest.mark.parametrize("planted", variants([*PLANTED, "all"], ["all"]))
def test_planted_values_reach_what_they_reach_in_the_loop(name, function, planted):
    items = [PLANTED[planted]] if planted in PLANTED else [*PLANTED.values()]
    with rs.tuned_for("gpu"):  # On a CPU a loop runs the linear block.
        found, expected = (results(name, function, newton, items) for newton in (NEWTON, None))
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-4, atol=1e-5)


def test_the_cases_tell():
    """Tangents are NaN before a reset, and finite after it."""
    for name, function, place in (("one leaf", "jvp", 1), ("two leaves", "jvp", 1)):
        tangent = np.asarray(results(name, function, None, [PLANTED["inf"], PLANTED["nan"]])[place][1])
        assert np.isnan(tangent[5, :2, 1]).all()
        assert np.isfinite(tangent[6:]).all()


def test_finite_tangents_run_no_steps_one_by_one(ran_step_by_step):
    for planted, runs in (([], False), ([PLANTED["nan"]], True)):
        for function in ("jvp", "jvp of grad"):
            jax.block_until_ready(results("one leaf", function, NEWTON, planted))
            jax.effects_barrier()
            assert bool(ran_step_by_step) == runs
            ran_step_by_step.clear()
