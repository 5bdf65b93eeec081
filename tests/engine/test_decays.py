"""Products of a chunk's decays, in a loop and in rounds: both equal the products that a plain loop makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprs import equations_of
from rnnscan.engine.loops.decays import decayed
from rnnscan.engine.loops.matrix_chunks import recurrence


STEPS, BATCH, KEYS = 8, (3, 2), 4


def arguments(decays):
    """Two queries, two keys, and decays with a reset."""
    draw = np.random.default_rng(0)
    rows = [draw.normal(size=(*BATCH, STEPS, KEYS)) for _ in range(4)]
    decay = draw.uniform(0.5, 1, (*BATCH, STEPS, decays))
    decay[0, 0, 3] = 0
    return rows[:2], rows[2:], decay


def plain(queries, keys, decay):
    """The same by the definitions."""
    own = np.broadcast_to(decay, (*BATCH, STEPS, KEYS))

    def product(begin, end):
        return np.prod(own[..., begin:end, :], -2)

    def score(query, key, step, earlier):
        if earlier >= step:
            return np.zeros(BATCH)
        return np.sum(query[..., step, :] * product(earlier + 1, step) * key[..., earlier, :], -1)

    steps = range(STEPS)
    from_start = np.stack([product(0, step) for step in steps], -2)
    to_end = [np.stack([product(step + 1, STEPS) * key[..., step, :] for step in steps], -2) for key in keys]
    scores = [
        [np.stack([np.stack([score(q, u, t, s) for s in steps], -1) for t in steps], -2) for u in keys] for q in queries
    ]
    return from_start, to_end, product(0, STEPS)[..., None, :], scores


@pytest.mark.parametrize("rounds", [False, True], ids=["loop", "rounds"])
@pytest.mark.parametrize("decays", [1, KEYS], ids=["of all keys", "per key"])
def test_products_are_those_of_a_plain_loop(decays, rounds):
    with jax.enable_x64(True):
        found = decayed(*jax.tree.map(jnp.asarray, arguments(decays)), rounds=rounds)
        from_start, to_end, whole, scores = plain(*arguments(decays))
        pairs = [(found.from_start, from_start), (found.whole, whole)]
        pairs += [*zip(found.to_end, to_end, strict=True)]
        pairs += [pair for rows in zip(found.scores, scores, strict=True) for pair in zip(*rows, strict=True)]
        for leaf, wanted in pairs:
            np.testing.assert_allclose(np.broadcast_to(leaf, wanted.shape), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("decays", [1, KEYS], ids=["of all keys", "per key"])
def test_the_loop_and_the_rounds_have_equal_derivatives(decays):
    def loss(given, rounds):
        made = decayed(*given, rounds=rounds)
        leaves = [made.from_start, *made.to_end, made.whole, *jax.tree.leaves(made.scores)]
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves)

    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, arguments(decays))
        loop, rounds = (jax.jit(jax.grad(loss), static_argnums=1)(given, rounds) for rounds in (False, True))
        for leaf, wanted in zip(jax.tree.leaves(loop), jax.tree.leaves(rounds), strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rounds", [False, True], ids=["loop", "rounds"])
def test_a_recurrence_and_its_derivatives_are_those_of_a_scan(rounds):
    def scanned(decay, added, start):
        def step(total, given):
            return given[0] * total + given[1], total

        last, before = jax.lax.scan(step, start, (decay, added))
        return before, last

    def derivatives(run):
        def loss(arguments):
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in run(*arguments))

        def along(arguments):
            return sum(jnp.vdot(leaf, jnp.cos(leaf)) for leaf in jax.tree.leaves(jax.grad(loss)(arguments)))

        return jax.jit(lambda arguments: (loss(arguments), jax.grad(loss)(arguments), jax.grad(along)(arguments)))

    with jax.enable_x64(True):
        draw = np.random.default_rng(0)
        shapes = [(5, 2, 3, 1), (5, 2, 3, 4), (2, 3, 4)]
        given = [jnp.asarray(draw.uniform(0.5, 1, shape)) for shape in shapes]
        own = derivatives(lambda *arguments: recurrence(*arguments, rounds=rounds))(given)
        for leaf, wanted in zip(jax.tree.leaves(own), jax.tree.leaves(derivatives(scanned)(given)), strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=1e-11, atol=1e-13)


def test_a_loop_stacks_its_states_once():
    """JAX's own derivative would stack them once more."""
    given = jnp.ones((6, 3, 1)), jnp.ones((6, 3, 5)), jnp.ones((3, 5))
    forward = jax.make_jaxpr(lambda *given: jax.vjp(lambda *given: recurrence(*given, rounds=False)[0], *given))(*given)
    loops = [equation for equation in equations_of(forward.jaxpr) if equation.primitive.name == "scan"]
    assert [value.aval.shape for loop in loops for value in loop.outvars].count((6, 3, 5)) == 1
