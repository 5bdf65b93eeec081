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


def test_nets_and_functions_over_named_values():
    xs, lengths = jax.random.normal(jax.random.key(1), (T, N, H)), jnp.array([2, 5, 3])
    net = rs.bidirectional(cells.LSTM(H), cells.GRU(H))
    params = net.init(jax.random.key(0), H)

    def cell_net(params, input_t, hidden_t_prev):
        return {"hidden_t": jnp.tanh(input_t @ params + hidden_t_prev)}

    def run():
        by_name = rs.recurrent_net(
            cell_net,
            jnp.eye(H),
            inputs={"input_t": xs},
            initial_cell_inputs={"hidden_t_prev": jnp.ones(H)},
            links={"hidden_t_prev": "hidden_t"},
            seq_lengths=lengths,
        )
        shared = rs.scan(rs.cells.GRU(H), params["backward"], (jnp.ones(H),), xs, seq_lengths=lengths)
        return net(params, xs, seq_lengths=lengths), by_name, shared, rs.reverse_by_length(xs, lengths)

    with jax.numpy_rank_promotion("raise"):
        actual = run()
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(run()), strict=True):
        assert jnp.allclose(one, other)
