"""Savings from replacing `nn.RNN` and `nnx.RNN` by those of rnnscan: `python -m benchmarks.flax_swap`."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from rich.console import Console
from rich.table import Table

import rnnscan as rs
from rnnscan._util.byte_sizes import readable_bytes
from rnnscan.insight import kept_bytes, temporary_bytes


LENGTH, BATCH, FEATURES, HIDDEN = 128, 32, 128, 256
STEPS, ROUNDS = 100, 15
Loss: TypeAlias = Callable[[Any, Any], Any]
Make: TypeAlias = Callable[[Any, Any], tuple[Loss, Any]]


class LinenModel(nn.Module):
    """A model with an RNN of Flax or rnnscan."""

    rnn: Any
    cell: Any

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        return nn.Dense(1)(self.rnn(self.cell(HIDDEN))(inputs))[..., 0]


class NnxModel(nnx.Module):
    """The same for nnx."""

    def __init__(self, rnn: Any, cell: Any) -> None:
        rngs = nnx.Rngs(0)
        self.rnn = rnn(cell(FEATURES, HIDDEN, rngs=rngs), rngs=False)
        self.head = nnx.Linear(HIDDEN, 1, rngs=rngs)

    def __call__(self, inputs: Any) -> Any:
        cell = self.rnn.cell
        # Flax's RNN cannot make its own carry under jax.grad.
        carry = cell.initialize_carry(inputs.shape[:1] + inputs.shape[2:], nnx.Rngs(0))
        return self.head(self.rnn(inputs, initial_carry=carry))[..., 0]


def linen_loss(rnn: Any, cell: Any) -> tuple[Loss, Any]:
    model = LinenModel(rnn, cell)
    params = jax.jit(model.init)(jax.random.key(0), jnp.ones((BATCH, LENGTH, FEATURES)))
    return lambda params, batch: jnp.mean((model.apply(params, batch[0]) - batch[1]) ** 2), params


def nnx_loss(rnn: Any, cell: Any) -> tuple[Loss, Any]:
    graphdef, params = nnx.split(NnxModel(rnn, cell), nnx.Param)
    return lambda params, batch: jnp.mean((nnx.merge(graphdef, params)(batch[0]) - batch[1]) ** 2), params


def train_step(loss: Loss, params: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
    value, gradient = jax.value_and_grad(loss)(params, batch)
    updates, state = optax.adam(1e-3).update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value


def compare(name: str, make: Make, pair: tuple[Any, Any], cell: Any, table: Table) -> None:
    inputs = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, FEATURES))
    batch = (inputs, jnp.sin(jnp.cumsum(inputs.mean(-1), axis=1)))
    runs, kept, temporary, losses = [], [], [], []
    for rnn in pair:
        loss, params = make(rnn, cell)
        state = optax.adam(1e-3).init(params)
        step = jax.jit(partial(train_step, loss)).lower(params, state, batch).compile()
        kept.append(kept_bytes(lambda params, loss=loss: loss(params, batch), params))
        temporary.append(temporary_bytes(step) or 0)
        runs.append(lambda step=step, params=params, state=state: jax.block_until_ready(step(params, state, batch)))
        values = []
        for _ in range(STEPS):
            params, state, value = step(params, state, batch)
            values.append(float(value))
        losses.append(values)
    ratios = []
    for _ in range(ROUNDS):
        seconds = []
        for run in runs:
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[1] / seconds[0])
    apart = max(abs(own - flax) / abs(flax) for flax, own in zip(*losses, strict=True))
    table.add_row(
        f"{name} {cell.__name__}",
        *(f"{readable_bytes(flax)} -> {readable_bytes(own)}" for flax, own in (kept, temporary)),
        f"{median(ratios):.2f}",
        f"{apart:.0e}",
    )


def main() -> None:
    title = f"{STEPS} steps of Adam, T={LENGTH}, N={BATCH}, D={FEATURES}, H={HIDDEN}: Flax -> rnnscan"
    table = Table("RNN of", "kept", "temporary", "time, ratio", "losses apart by", title=title)
    for cell in (nn.LSTMCell, nn.OptimizedLSTMCell, nn.GRUCell):
        compare("linen", linen_loss, (nn.RNN, rs.linen.RNN), cell, table)
    for cell in (nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell):
        compare("nnx", nnx_loss, (nnx.RNN, rs.nnx.RNN), cell, table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
