"""A user's file, for mypy in `make lint`: what is a cell, and what mistakes it finds.

Each `type: ignore` stands at a mistake. mypy reports the comments that it does not need.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, assert_type

import jax
import jax.numpy as jnp
from jax import Array

import rnnscan as rs
from rnnscan import attention, cells


def decay(params: Array, carry: Array, x: Array) -> tuple[Array, Array]:
    carry = params * carry + x
    return carry, carry


def at_rate(rate: float, params: Array, carry: Array, x: Array) -> tuple[Array, Array]:
    return rate * carry + params * x, carry


@dataclass(frozen=True)
class Own:
    """A cell of the user's, which derives from nothing."""

    hidden: int
    names: tuple[str, ...] = ()

    @property
    def output_size(self) -> int:
        return self.hidden

    def init(self, key: Array, input_size: int) -> dict[str, Array]:
        return {"kernel": jax.random.normal(key, (input_size, self.hidden))}

    def initial_carry(self, x: Array) -> tuple[Array]:
        return (jnp.zeros((*x.shape[:-1], self.hidden)),)

    def __call__(self, params: dict[str, Array], carry: tuple[Array], x: Array) -> tuple[tuple[Array], Array]:
        hidden = jnp.tanh(carry[0] + x @ params["kernel"])
        return (hidden,), hidden


def check_cells() -> list[rs.Cell]:
    """What mypy takes for a cell."""
    maker = attention.decoder(cells.GRU(4), attention.Dot(4))
    composable: list[rs.ComposableCell] = [
        Own(4),
        cells.LSTM(4),
        cells.ConvLSTM(4, (3,)),
        cells.SLSTM(4),
        rs.stack(cells.LSTM(4), Own(4)),
        rs.residual(Own(4)),
        rs.dropout(cells.GRU(4), 0.1),
        rs.zoneout(cells.GRU(4), 0.1),
        rs.windowed(cells.GRU(4), 2),
        rs.adaptive_computation(cells.GRU(4), 2),
        maker.over(maker.init(jax.random.key(0), 3), jnp.ones((5, 2, 4))),
    ]
    with_init: list[rs.InitializableCell] = [*composable]
    return [*with_init, decay, lambda params, carry, x: (carry, x), partial(at_rate, 0.5), jax.jit(decay)]


def check_results() -> None:
    cell, x = cells.LSTM(4), jnp.ones((2, 3))
    params, carry = cell.init(jax.random.key(0), 3), cell.initial_carry(x)
    assert_type(params, dict[str, Array])
    assert_type(carry, tuple[Array, ...])
    assert_type(cell(params, carry, x), tuple[tuple[Array, ...], Array])
    assert_type(rs.scan(cell, params, carry, x[None]), tuple[Any, Any])
    assert_type(rs.name(x, "x"), Array)
    assert_type(rs.plan(cell, params, carry, x[None], budget="1MiB").temporary_bytes, int)
    assert_type(rs.memory_report(cell, params, carry, x[None]).training.kept_bytes, int)
    assert_type(rs.explain(cell, params, carry, x[None]).engine, str)
    net = rs.layer(cell)
    assert_type(rs.memory_report(net, params, x[None], carry=carry).training.kept_bytes, int)
    assert_type(rs.truncated.by_window(net, params, x[None], every=2, back=4), tuple[Any, Any])
    assert_type(net.output_size, int)


def mistakes(x: Array) -> None:
    two: rs.Cell = lambda carry, x: (carry, x)  # type: ignore[assignment]  # noqa: E731
    rs.scan(two, None, x, x, memry=None)  # type: ignore[call-arg]
    rs.scan(decay, None, x, x, engine="loop")  # type: ignore[arg-type]
    rs.scan(x, decay, x, x)  # type: ignore[arg-type]
    rs.plan(decay, None, x, x)  # type: ignore[call-overload]
    rs.truncated.by_window(decay, None, x, x, every=2, back="4")  # type: ignore[call-overload]
    rs.stack(decay)  # type: ignore[arg-type]
    rs.layer(attention.decoder(cells.GRU(4), attention.Dot(4)))  # type: ignore[arg-type]
    rs.Memory(recompute="some")  # type: ignore[arg-type]
    rs.scann(decay, None, x, x)  # type: ignore[attr-defined]
