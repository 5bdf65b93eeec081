"""Which constants of a step have the units first, and not the rows, where both have one size."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.engine.analysis.flat_step import FlatStep, flatten
from rnnscan.naming import Names


def step_of(cell, features, rows) -> FlatStep:
    params = cell.init(jax.random.key(0), features)
    x = jnp.ones((rows, features))
    carry = cell.initial_carry(x)
    closed = jax.make_jaxpr(
        lambda *leaves: jax.tree.leaves(cell(params, jax.tree.unflatten(tree, leaves[:-1]), leaves[-1]))
    )
    tree = jax.tree.structure(carry)
    return flatten(closed(*jax.tree.leaves(carry), x), len(jax.tree.leaves(carry)), Names((), ()))


@pytest.mark.parametrize("cell", [rs.cells.LSTM(4), rs.cells.GRU(4), rs.cells.RNN(4), rs.cells.LayerNormLSTM(4)])
def test_kernels_as_long_as_the_batch_are_not_of_rows(cell):
    step = step_of(cell, 4, rows=4)
    lengths = {index for index, leaf in enumerate(step.constants) if leaf.shape[:1] == (4,)}
    assert lengths
    assert lengths <= step.constants_over_units
