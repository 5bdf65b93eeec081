"""Carries that are read by index: the parts that a step reads are kept in place of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.insight.memory_report import memory_report
from tiers import variants


LENGTH, ROWS, WIDTH, ENTRIES = 11, 2, 3, 10


def table_of_rows(params, table, x):
    """A table without a batch axis. Two rows may share an entry."""
    indices, update = x
    new = jnp.tanh(table[indices] @ params + update)
    return table.at[indices].add(new), new


def one_slot(params, memory, x):
    """A memory whose slot is read, and overwritten, for all rows at once."""
    indices, update = x
    read = lax.dynamic_index_in_dim(memory, indices[0], axis=1, keepdims=False)
    new = jnp.tanh(read @ params + update)
    return lax.dynamic_update_slice(memory, new[:, None], (0, indices[1], 0)), new


def two_tables(params, tables, x):
    """What the first table says is written into the second, which is read as a whole."""
    first, second = tables
    first, new = table_of_rows(params, first, x)
    second = second.at[x[0]].set(new)
    return (first, second), jnp.sum(jnp.sin(second), axis=0)


STEPS = {
    "table": (table_of_rows, lambda draw: draw(ENTRIES, WIDTH)),
    "slot": (one_slot, lambda draw: draw(ROWS, ENTRIES, WIDTH)),
    "two tables": (two_tables, lambda draw: (draw(ENTRIES, WIDTH), draw(ENTRIES, WIDTH))),
}


def arguments_of(initial):
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape))

    indices = jnp.asarray(random.integers(ENTRIES, size=(LENGTH, ROWS)))
    return draw(WIDTH, WIDTH), initial(draw), (indices, draw(LENGTH, ROWS, WIDTH))


OPTIONS = {
    "plain": {},
    "reversed": {"reverse": True},
    "chunks with a remainder": {"memory": rs.Memory(chunk=3)},
    "segments": {"memory": rs.Memory(segment=4)},
}
TELLING = ["table, chunks with a remainder", "slot, reversed", "two tables, segments"]


@pytest.mark.parametrize(
    ("name", "options"),
    variants({f"{name}, {one}": (name, OPTIONS[one]) for name in STEPS for one in OPTIONS}, TELLING),
)
def test_values_and_gradients_are_those_of_plain_autodiff(name, options):
    step, initial = STEPS[name]

    def results_and_gradients(arguments, **options):
        def loss(*arguments):
            results = rs.scan(step, *arguments, **options)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results)), results

        gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True, allow_int=True)
        return jax.tree.leaves(jax.jit(gradient)(*arguments))

    with jax.enable_x64(True):
        arguments = arguments_of(initial)
        found = results_and_gradients(arguments, **options)
        expected = results_and_gradients(arguments, **options | {"memory": None})
    for leaf, wanted in zip(found, expected, strict=True):
        if leaf.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", STEPS)
def test_the_parts_are_kept_and_not_the_whole(name):
    step, initial = STEPS[name]
    arguments = arguments_of(initial)
    training = memory_report(step, *arguments, memory=rs.Memory(chunk=LENGTH), compile=False).training
    assert training.kept_bytes == training.counted_bytes
    # The inputs, the carry before the first step and before the only chunk, and the rows that each step reads.
    read = LENGTH * ROWS * WIDTH * 4
    given = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments))
    carry = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments[1]))
    assert training.kept_bytes == given + carry + read
