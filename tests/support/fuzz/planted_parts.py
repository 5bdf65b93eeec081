"""Carries and operations for cells in which a NaN, an inf or an overflow is planted: many selects and decays."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fuzz.carries import KINDS, Carry
from fuzz.draw import Draw
from fuzz.operations import OPERATIONS


# Two rows mix in these at every step, so that nothing would be left that a NaN must not reach; an integer that a NaN is
# rounded to is not defined; the others take long to compile.
LEFT_OUT = frozenset(
    {"reduction over rows", "transpose", "rounded to integers", "scan within", "rnnscan within", "switch", "sort"}
    | {"convolution", "while of integers", "fori loop"}
)
CARRIES: dict[str, Carry] = {**KINDS}
PLANTED_OPERATIONS: dict[str, Callable[[Draw], Any]] = {
    name: operation for name, operation in OPERATIONS.items() if name not in LEFT_OUT
}


def _chosen(draw: Draw, rank: int = 2) -> Any:
    """For each row whether a select takes what is computed, to broadcast against values of a rank."""
    return draw.chosen.reshape(-1, *[1] * (rank - 1))


class _Cleared(Carry, name="linear, cleared by a select", table=CARRIES):
    def next(self, draw, carry):
        width = carry.shape[1]
        free = draw.chance(0.6)
        factor = draw.pick([lambda: jax.nn.sigmoid(draw.value(width, free=free)), lambda: draw.weights(width)])()
        new = factor * carry + draw.value(width, free=free)
        return jnp.where(_chosen(draw), new, draw.pick([0.0, 0.5]))


class _ClearedBefore(Carry, name="linear, of a state that a select clears", table=CARRIES):
    def next(self, draw, carry):
        width = carry.shape[1]
        factor = jax.nn.sigmoid(draw.value(width, free=draw.chance(0.6)))
        return factor * jnp.where(_chosen(draw), carry, 0.0) + draw.value(width, free=True)


class _ClearedState(Carry, name="recurrent, cleared by a select", table=CARRIES):
    def next(self, draw, carry):
        width = carry.shape[1]
        new = jnp.tanh(carry @ draw.weights(width, width) + draw.value(width))
        return jnp.where(_chosen(draw), new, 0.1)


class _Held(Carry, name="held by a select", table=CARRIES):
    def next(self, draw, carry):
        return jnp.where(_chosen(draw), draw.value(carry.shape[1]), carry)


class _Growing(Carry, name="linear, growing", table=CARRIES):
    """Over zeros, where the offset is zero; else it grows by less than 1e6 in the steps that there are."""

    def initial(self, random, batch, width):
        return jnp.zeros((batch, width)) + (random.random((batch, width)) < 0.5) * 1e-9

    def next(self, draw, carry):
        return 2.0 * carry + draw.pick([0.0, 1e-9]) * draw.value(carry.shape[1], free=True)


class _GatedMatrix(Carry, name="matrix with gates", table=CARRIES):
    initial = CARRIES["matrix"].initial.__func__  # type: ignore[attr-defined]
    read = CARRIES["matrix"].read.__func__  # type: ignore[attr-defined]

    def next(self, draw, carry):
        free = draw.chance(0.7)
        key, value = draw.value(carry.shape[1], free=free), draw.value(2, free=free)
        gate = jax.nn.sigmoid(draw.value(draw.pick([1, carry.shape[1]]), free=free))[:, :, None]
        new = gate * carry + jnp.tanh(key)[:, :, None] * value[:, None, :]
        return jnp.where(_chosen(draw, 3), new, 0.0) if draw.chance(0.4) else new


class _Halved(Carry, name="halved integers", table=CARRIES):
    def initial(self, random, batch, width):
        return jnp.asarray(random.integers(-9, 9, size=batch))

    read = CARRIES["counter"].read.__func__  # type: ignore[attr-defined]

    def next(self, draw, carry):
        return draw.pick([lambda: carry // 2 + draw.index(3), lambda: carry * 3 % 7, lambda: -carry // 2])()


class _DeadNaN(Carry, name="read by nothing, NaN", table=CARRIES):
    def read(self, draw, carry):
        pass

    def next(self, draw, carry):
        return jnp.log(carry - 100.0) * draw.value(carry.shape[1])


class _RunningNorm(Carry, name="running norm that nothing reads", table=CARRIES):
    def initial(self, random, batch, width):
        return jnp.asarray(random.random(batch))

    def read(self, draw, carry):
        pass

    def next(self, draw, carry):
        return carry + jnp.sqrt(jnp.sum(draw.value() ** 2, axis=1))


def _select(draw: Draw) -> Any:
    value, other = draw.pair()
    return jnp.where(_chosen(draw), draw.function()(value), draw.pick([other, 0.0 * jnp.ones_like(other)]))


def _select_operand(draw: Draw) -> Any:
    value = draw.value()
    return draw.function()(jnp.where(_chosen(draw), value, 0.0))


def _power(draw: Draw) -> Any:
    return jnp.tanh(jnp.abs(draw.value()) ** draw.pick([0.5, 1.5, 2.5, -0.5]))


def _unbounded(draw: Draw) -> Any:
    value, other = draw.pair()
    return draw.pick([lambda: value * other, lambda: jnp.exp(value), lambda: value**2])() / 4


def _small_product(draw: Draw) -> Any:
    value = draw.value()
    return jnp.einsum("nv,nw,vw->nw", value, value, draw.weights(value.shape[1], value.shape[1])) / 4


def _one_hot(draw: Draw) -> Any:
    """A select, in place of a product with ones and zeros.

    XLA makes a select of the product itself, but only where one program has both: zero times NaN is zero there, and NaN
    where the ones and zeros were stored. So `jax.checkpoint` around a step changes what plain `lax.scan` gives.
    """
    return jnp.where(draw.index(3)[:, None] == jnp.arange(3), draw.value(3), 0.0)


for _operation in (_one_hot, _select, _select_operand, _power, _unbounded, _small_product):
    PLANTED_OPERATIONS[_operation.__name__.strip("_").replace("_", " ")] = _operation
