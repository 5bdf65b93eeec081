"""A batch without rows, such as the last one of a filtered data set: results without rows, and gradients of zero."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from tiers import variants
from zoo.cases import CASES


STEPS = 40
# Heads, blocks of a kernel, a window of inputs, and what a TPU runs whole.
TELLING = ["LSTM", "SLSTM heads", "MLSTM heads", "GLA heads", "Mamba2 groups", "Windowed"]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("case", variants(CASES, TELLING))
def test_results_have_no_rows_and_gradients_are_zero(case, platform):
    params, carry, xs = case.arguments(length=STEPS, batch=0)
    expected = jax.eval_shape(lambda: case.scan(params, carry, xs, engine="lax"))
    for memory in (rs.Memory(), rs.Memory(segment=7)):

        def loss(params, xs, memory=memory):
            results = case.scan(params, carry, xs, memory=memory)
            return case.loss(results), results

        gradient = jax.jit(jax.grad(loss, (0, 1), has_aux=True, allow_int=True))
        with rs.tuned_for(platform):
            gradients, results = gradient(params, xs)
        assert jax.tree.map(jnp.shape, results) == jax.tree.map(jnp.shape, expected)
        assert not any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(gradients) if leaf.dtype != jax.dtypes.float0)


def test_a_recurrent_net_and_windows_have_no_rows():
    xs = jnp.ones((STEPS, 0, 3))

    def cell_net(params, input_t, hidden_t_prev):
        return {"hidden_t": jnp.tanh(input_t @ params + hidden_t_prev)}

    results = rs.recurrent_net(
        cell_net,
        jnp.ones((3, 4)),
        inputs={"input_t": xs},
        initial_cell_inputs={"hidden_t_prev": jnp.ones(4)},
        links={"hidden_t_prev": "hidden_t"},
    )
    assert jax.tree.map(jnp.shape, results) == {"hidden_t_all": (STEPS, 0, 4), "hidden_t_last": (0, 4)}
    cell = rs.cells.LSTM(4)
    params = cell.init(jax.random.key(0), input_size=3)
    _, ys = rs.truncated.by_window(cell, params, cell.initial_carry(xs[0]), xs, every=5, back=10)
    assert ys.shape == (STEPS, 0, 4)
