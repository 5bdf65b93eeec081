"""Models of several kinds, trained by the same loop to the same parameters as by hand, and resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import rnnscan as rs
from rnnscan import cells
from rnnscan.train import RunDirectory, begin, fit, make_step
from tiers import variants


TIME, ROWS, INPUTS, HIDDEN = 5, 3, 2, 4


class Problem(NamedTuple):
    params: Any
    loss: Callable[..., Any]
    carry: Any


def batch_at(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(TIME, ROWS, INPUTS)).astype(np.float32)


def of_the_outputs(outputs: Any) -> Any:
    return jnp.mean((outputs - 0.3) ** 2)


def plain_net() -> Problem:
    net = cells.LSTM(HIDDEN)

    def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        carry, outputs = rs.scan(net, params, carry, batch, memory=rs.Memory(recompute="all"))
        return of_the_outputs(outputs), carry

    return Problem(net.init(jax.random.key(0), INPUTS), loss, net.initial_carry(jnp.zeros((ROWS, INPUTS))))


def linen_module() -> Problem:
    rnn = linen.RNN(linen.LSTMCell(HIDDEN), time_major=True, return_carry=True)
    carry = rnn.cell.initialize_carry(jax.random.key(0), (ROWS, INPUTS))

    def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        carry, outputs = rnn.apply({"params": params}, batch, initial_carry=carry)
        return of_the_outputs(outputs), carry

    return Problem(rnn.init(jax.random.key(1), batch_at(0))["params"], loss, carry)


def nnx_module() -> Problem:
    """Its parameters are trained; the rest of its state, dropout's counts among it, goes from step to step."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.linear = nnx.Linear(INPUTS, HIDDEN, rngs=rngs)
            self.norm = nnx.BatchNorm(HIDDEN, rngs=rngs)
            self.dropout = nnx.Dropout(0.3, rngs=rngs)

        def __call__(self, xs: Any) -> Any:
            return self.dropout(self.norm(jnp.tanh(self.linear(xs))))

    graph, params, rest = nnx.split(Model(nnx.Rngs(2)), nnx.Param, ...)

    def loss(params: Any, rest: Any, batch: Any, key: Any) -> Any:
        model = nnx.merge(graph, params, rest)
        value = of_the_outputs(model(batch))
        return value, nnx.state(model, nnx.Not(nnx.Param))

    return Problem(params, loss, rest)


@pytest.mark.parametrize("make", variants([plain_net, linen_module, nnx_module], [plain_net, nnx_module]))
def test_a_model_of_any_kind_is_trained_and_resumed(make: Callable[[], Problem], tmp_path: Path) -> None:
    problem, optimizer = make(), optax.adam(0.05)
    step = make_step(problem.loss, optimizer)
    initial = begin(problem.params, optimizer, carry=problem.carry)

    run = RunDirectory(tmp_path)
    fit(step, initial, batch_at, steps=3, run=run, progress=False)
    resumed = fit(step, run.restore(initial), batch_at, steps=6, run=run, progress=False)
    whole = fit(step, initial, batch_at, steps=6, progress=False)

    @jax.jit
    def gradient_of(params: Any, carry: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return problem.loss(params, jax.tree.map(jnp.copy, carry), batch, None)

        return jax.value_and_grad(loss, has_aux=True)(params)

    params, carry, optimizer_state = problem.params, problem.carry, optimizer.init(problem.params)
    values = []
    for number in range(6):
        (value, carry), gradient = gradient_of(params, carry, batch_at(number))
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        params = optax.apply_updates(params, updates)
        values.append(float(value))
    assert len(set(values)) == 6
    np.testing.assert_allclose([line["loss"] for line in run.read_metrics()], values, rtol=1e-5)
    assert jax.tree.structure(resumed.params) == jax.tree.structure(problem.params)
    for actual, same, expected in zip(
        *(jax.tree.leaves(tree) for tree in (resumed.params, whole.params, params)), strict=True
    ):
        np.testing.assert_array_equal(actual, same)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
