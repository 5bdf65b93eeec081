"""States with the decay, keys and queries of a matrix state run as more of its values."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from matrix_states import SMALL, assert_equal, compiled
from rnnscan import cells
from rnnscan.engine.costs.heuristics import using
from tiers import variants
from zoo.case import Case


ROWS, HEADS, KEYS, VALUES, LENGTH = 3, 2, 4, 5, 21


@pytest.fixture(autouse=True)
def small(x64):
    with using(SMALL):
        yield


def decay_of(gate):
    return jax.nn.sigmoid(gate)[..., 0]


def gated_keys(params, carry, x):
    """The gate scales the keys of both states."""
    (state, total), (query, key, value, gate) = carry, x
    decay, write = decay_of(gate), jnp.exp(gate[..., 1])
    state = decay[..., None, None] * state + write[..., None, None] * key[..., :, None] * value[..., None, :]
    total = decay[..., None] * total + write[..., None] * key
    return (state, total), jnp.einsum("nhk,nhkv->nhv", query, state) / (1 + (query * total).sum(-1)[..., None] ** 2)


def gated_values(params, carry, x):
    """The gate scales the values of one state. The reads are products, before the update."""
    (state, total), (query, key, value, gate) = carry, x
    decay = decay_of(gate)
    found = jnp.einsum("nhk,nhkv->nhv", query, state) / (1 + jnp.einsum("nhk,nhk->nh", query, total)[..., None] ** 2)
    state = decay[..., None, None] * state + key[..., :, None] * (gate[..., 1:] * value)[..., None, :]
    total = decay[..., None] * total - key
    return (state, total), found


def constant_decay(params, carry, x):
    """A read through a view with one more axis."""
    (state, total), (query, key, value, _) = carry, x
    state, total = 0.9 * state + key[..., :, None] * value[..., None, :], 0.9 * total + key
    found = jnp.einsum("nhk,nhkv->nhv", query, total[..., None])
    return (state, total), jnp.einsum("nhk,nhkv->nhv", query, state) / (1 + found**2)


def decay_a_key(params, carry, x):
    (state, total), (query, key, value, _) = carry, x
    decay = jax.nn.sigmoid(query)
    state = decay[..., None] * state + key[..., :, None] * value[..., None, :]
    total = decay * total + key
    return (state, total), jnp.einsum("nhk,nhkv->nhv", query, state) / (1 + (query * total).sum(-1)[..., None] ** 2)


JOINED = {cell.__name__: cell for cell in (gated_keys, gated_values, constant_decay, decay_a_key)}


def arguments(seed=0):
    random = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(random.normal(size=(ROWS, HEADS, *shape)))  # noqa: E731
    steps = lambda *shape: jnp.asarray(random.normal(size=(LENGTH, ROWS, HEADS, *shape)))  # noqa: E731
    return (draw(KEYS, VALUES), draw(KEYS)), (steps(KEYS), steps(KEYS), steps(VALUES), steps(2))


def states(cell, carry, xs, **options):
    return [*rs.explain(cell, None, carry, xs, **options).states.values()]


def is_joined(texts):
    return [text.startswith("beside the values") for text in texts] == [False, True]


def both(cell, carry, xs, **options):
    def run(**options):
        def loss(carry, xs):
            results = rs.scan(cell, None, carry, xs, **options)
            return Case.loss(results), results

        return compiled(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(carry, xs)

    return run(**options), run(**options | {"engine": "lax", "memory": None})


RANDOM = np.random.default_rng(1)
LENGTHS = jnp.array([13, LENGTH, 0])
RESET = jnp.asarray(RANDOM.random((LENGTH, ROWS)) < 0.2)
RESET_TO = RANDOM.normal(size=(ROWS, HEADS, KEYS, VALUES)), RANDOM.normal(size=(ROWS, HEADS, KEYS))
OPTIONS = {
    "plain": {},
    "lengths, resets, reversed": {"seq_lengths": LENGTHS, "reset": RESET, "reset_to": RESET_TO, "reverse": True},
    "segments": {"memory": rs.Memory(segment=9)},
}
TELLING = ["gated_keys, lengths, resets, reversed", "constant_decay, plain"]


@pytest.mark.parametrize(
    ("cell", "options"),
    variants({f"{name}, {one}": (JOINED[name], OPTIONS[one]) for name in JOINED for one in OPTIONS}, TELLING),
)
def test_a_joined_state_has_the_values_and_gradients_of_the_loop(cell, options):
    carry, xs = arguments()
    assert is_joined(states(cell, carry, xs, **options))
    assert_equal(*both(cell, carry, xs, **options))


@pytest.mark.parametrize("name", ["gated_values"])
def test_windows_and_mapped_sequences(name):
    cell, (carry, xs) = JOINED[name], arguments()
    run = compiled(partial(rs.scan, cell, None))
    whole = run(carry, xs)
    middle, first = run(carry, jax.tree.map(lambda leaf: leaf[:9], xs))
    last, second = run(middle, jax.tree.map(lambda leaf: leaf[9:], xs))
    assert_equal((last, jnp.concatenate([first, second])), whole, 1e-12)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), xs)
    assert_equal(jax.vmap(lambda xs: run(carry, xs)[1])(stacked)[0], whole[1], 1e-12)


@pytest.mark.parametrize("cell", [cells.MLSTM(8, heads=2), cells.LinearAttention(8, heads=2)], ids=repr)
def test_normalizers_of_cells_are_joined(cell):
    case = Case(cell)
    texts = [*rs.explain(cell, *case.arguments(length=LENGTH, batch=ROWS)).states.values()]
    assert is_joined(texts), texts


def other_decay(params, carry, x):
    (state, total), y = gated_keys(params, carry, x)
    return (state, total / 2), y


def other_query(params, carry, x):
    (state, total), y = gated_keys(params, carry, x)
    return (state, total), y + (jnp.sin(x[0]) * total).sum(-1)[..., None]


def other_read(params, carry, x):
    (state, total), y = gated_keys(params, carry, x)
    return (state, total), y + jnp.sin(total).sum(-1)[..., None]


def value_from_read(params, carry, x):
    query, key, value, gate = x
    value = value + (query * carry[1]).sum(-1)[..., None]
    return gated_keys(params, carry, (query, key, value, gate))


@pytest.mark.parametrize("cell", variants([other_decay, other_query, other_read, value_from_read], [value_from_read]))
def test_other_vectors_run_step_by_step(cell):
    carry, xs = arguments()
    first, *others = states(cell, carry, xs)
    assert first.startswith("in chunks"), first
    assert all(text.startswith("step by step") for text in others), others
    assert_equal(*both(cell, carry, xs))


def test_two_matrices_with_the_same_keys_are_joined():
    def cell(params, carry, x):
        query, key, value, gate = x
        decay = decay_of(gate)[..., None, None]
        values = (value, jnp.sin(value[..., :3]))
        new = tuple(decay * old + key[..., :, None] * own[..., None, :] for old, own in zip(carry, values, strict=True))
        return new, [jnp.einsum("nhk,nhkv->nhv", query, state) for state in new]

    (state, _), xs = arguments()
    carry = (state, state[..., :3])
    assert is_joined(states(cell, carry, xs))
    assert_equal(*both(cell, carry, xs))
