"""The cells, lengths, masks and resets under `jax.numpy_rank_promotion("raise")`, which teams turn on."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from tiers import variants


T, N, H = 5, 3, 8
NAMES = [
    name
    for name in dir(cells)
    if isinstance(getattr(cells, name), type) and hasattr(getattr(cells, name), "init") and not name.startswith("Conv")
]


@pytest.mark.parametrize(
    "name", variants({name: (name,) for name in NAMES}, ["LSTM", "GRU", "LayerNormLSTM", "LRU", "Mamba2", "ParaLSTM"])
)
def test_a_cell_with_lengths_and_resets(name):
    try:
        cell = getattr(cells, name)(H)
    except TypeError:
        pytest.skip("takes other arguments")
    xs = jax.random.normal(jax.random.key(1), (T, N, H))
    options = {"seq_lengths": jnp.array([2, 5, 3]), "reset": jnp.zeros((T, N), bool).at[3].set(True)}

    def gradients():
        params = cell.init(jax.random.key(0), H)

        def loss(params, xs):
            return jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)[1] ** 2)

        return jax.jit(jax.grad(loss, (0, 1)))(params, xs)

    with jax.numpy_rank_promotion("raise"):
        actual = gradients()
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(gradients()), strict=True):
        assert jnp.allclose(one, other)
