"""The carries that a random cell can have: how each begins, what of it can be computed with, and what comes next."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from drawn import normal
from fuzz.draw import Draw


KINDS: dict[str, "Carry"] = {}


class Carry:
    """One part of a carry: floats `(batch, width)` that are read as they are, unless a subclass says otherwise."""

    # Whether all leaves are `(batch, ...)`, so that lengths, masks and resets can speak of rows.
    by_rows = True
    # Whether it can be zero.
    has_zero = True

    def __init_subclass__(cls, name: str, table: dict[str, "Carry"] = KINDS) -> None:
        table[name] = cls()

    def initial(self, random: np.random.Generator, batch: int, width: int) -> Any:
        return jnp.asarray(random.normal(size=(batch, width)) / 2)

    def read(self, draw: Draw, carry: Any) -> None:
        if draw.chance(0.1):
            draw.features.add("name of a carry")
            carry = draw.named(carry, draw.any_label())
        draw.add(carry, free=False)

    def next(self, draw: Draw, carry: Any) -> Any:
        raise NotImplementedError


class _Recurrent(Carry, name="recurrent"):
    def next(self, draw, carry):
        width = carry.shape[1]
        return jnp.tanh(carry @ draw.weights(width, width) + draw.value(width))


class _Gated(Carry, name="gated"):
    def next(self, draw, carry):
        width = carry.shape[1]
        gate = jax.nn.sigmoid(carry @ draw.weights(width, width) + draw.value(width))
        return gate * carry + (1 - gate) * jnp.tanh(draw.value(width))


class _Elementwise(Carry, name="elementwise"):
    def next(self, draw, carry):
        return jnp.tanh(carry + draw.value(carry.shape[1]))


class _LogSumExp(Carry, name="logsumexp"):
    def next(self, draw, carry):
        return jnp.logaddexp(carry, draw.fed(carry.shape[1])) - 0.5


def _linear(draw: Draw, carry: Any, *, free: bool) -> Any:
    """`a * carry + b` in one of the ways to write it."""
    width = carry.shape[1]
    offset = draw.value(width, free=True) if free else jnp.tanh(draw.value(width))
    factor = draw.pick(
        [
            lambda: jax.nn.sigmoid(draw.value(width, free=free)),
            lambda: jax.nn.sigmoid(draw.value(free=free)[:, :1]),
            lambda: jax.nn.sigmoid(draw.weights(width)),
            lambda: 0.7,
        ]
    )()
    ways = [
        lambda: factor * carry + offset,
        lambda: offset - carry * factor,
        lambda: carry + factor * (offset - carry),
        lambda: factor * carry + (1 - factor) * offset,
        lambda: jnp.where(offset > 0.1, carry, offset),
        lambda: offset,
        lambda: carry + offset / 2,
        lambda: -carry,
    ]
    # Most are of the first four.
    return draw.pick([*ways[:4], *ways])()


class _LinearFree(Carry, name="linear, free of carries"):
    def next(self, draw, carry):
        return _linear(draw, carry, free=True)


class _Linear(Carry, name="linear, or not"):
    def next(self, draw, carry):
        return _linear(draw, carry, free=False)


class _Clipped(Carry, name="shifted and clipped"):
    def next(self, draw, carry):
        width = carry.shape[1]
        free = draw.chance(0.5)
        shifted = carry + jnp.tanh(draw.value(width, free=free))
        low, high = (jnp.tanh(draw.value(width, free=free)) for _ in range(2))
        ways = [
            lambda: jnp.maximum(shifted, low),
            lambda: jnp.minimum(high, shifted),
            lambda: jnp.minimum(jnp.maximum(shifted, low), high),
            lambda: jnp.maximum(jnp.where(low > high, shifted, high), low),
        ]
        return draw.pick(ways)()


class _LinearProduct(Carry, name="linear, by a matrix"):
    def next(self, draw, carry):
        width = carry.shape[1]
        return carry @ draw.weights(width, width) + draw.fed(width)


class _Rotated(Carry, name="two that rotate"):
    def initial(self, random, batch, width):
        return {name: super(_Rotated, self).initial(random, batch, width) for name in ("sine", "cosine")}

    def read(self, draw, carry):
        draw.add(carry["sine"], free=False)
        draw.add(carry["cosine"], free=False)

    def next(self, draw, carry):
        width = carry["sine"].shape[1]
        angle, value = draw.weights(width), draw.fed(width)
        sine, cosine = 0.9 * jnp.sin(angle), 0.9 * jnp.cos(angle)
        return {
            "sine": carry["sine"] * cosine + carry["cosine"] * sine,
            "cosine": carry["cosine"] * cosine - carry["sine"] * sine + value,
        }


class _Exchanged(Carry, name="two that change places"):
    def initial(self, random, batch, width):
        return [super(_Exchanged, self).initial(random, batch, width) for _ in range(2)]

    def read(self, draw, carry):
        draw.add(draw.pick(carry), free=False)

    def next(self, draw, carry):
        return [carry[1], jnp.tanh(carry[0] + draw.value(carry[0].shape[1]))]


class _Complex(Carry, name="complex"):
    def initial(self, random, batch, width):
        return jnp.asarray((random.normal(size=(batch, width)) + 1j * random.normal(size=(batch, width))) / 2)

    def read(self, draw, carry):
        draw.add(jnp.concatenate([carry.real, carry.imag], axis=1), free=False)

    def next(self, draw, carry):
        width = carry.shape[1]
        return 0.9 * jnp.exp(1j * draw.weights(width)) * carry + draw.fed(width)


class _Matrix(Carry, name="matrix"):
    """Fast weights: decayed, with an outer product added."""

    def initial(self, random, batch, width):
        return jnp.asarray(random.normal(size=(batch, width, 2)) / 2)

    def read(self, draw, carry):
        draw.add(jnp.einsum("nw,nwv->nv", draw.value(carry.shape[1]), carry), free=False)

    def next(self, draw, carry):
        free = draw.chance(0.5)
        key, value = draw.value(carry.shape[1], free=free), draw.value(2, free=free)
        return 0.8 * carry + jnp.tanh(key)[:, :, None] * jnp.tanh(value)[:, None, :]


class _Written(Carry, name="written in place"):
    """A memory of three slots. One slot, the same for all rows, gets a new value at each step."""

    def initial(self, random, batch, width):
        return jnp.asarray(random.normal(size=(batch, 3, width)) / 2)

    def read(self, draw, carry):
        draw.add(jnp.einsum("ns,nsw->nw", jnp.tanh(draw.value(3)), carry), free=False)

    def next(self, draw, carry):
        value = jnp.tanh(draw.value(carry.shape[2], free=draw.chance(0.5)))
        return lax.dynamic_update_slice(carry, value[:, None], (0, draw.index(3)[0], 0))


class _Scattered(Carry, name="scattered to"):
    """A memory of three slots. In each row a slot of its own is set, or added to."""

    initial = _Written.initial
    read = _Written.read

    def next(self, draw, carry):
        value = jnp.tanh(draw.value(carry.shape[2], free=draw.chance(0.5)))
        slot = (0.9 * carry).at[jnp.arange(draw.batch), draw.index(3)]
        return slot.set(value) if draw.chance(0.5) else slot.add(value)


class _ReadByIndex(Carry, name="read by index"):
    """A memory of eight slots. A slot is read, and a slot is set or added to."""

    def initial(self, random, batch, width):
        return jnp.asarray(random.normal(size=(batch, 8, width)) / 2)

    def read(self, draw, carry):
        if draw.chance(0.5):
            draw.add(carry[jnp.arange(draw.batch), draw.index(8)], free=False)
        else:
            draw.add(lax.dynamic_index_in_dim(carry, draw.index(8)[0], axis=1, keepdims=False), free=False)

    def next(self, draw, carry):
        value = jnp.tanh(draw.value(carry.shape[2]))
        slot = carry.at[jnp.arange(draw.batch), draw.index(8)]
        return slot.set(value) if draw.chance(0.5) else slot.add(value)


class _Passed(Carry, name="passed unchanged"):
    def next(self, draw, carry):
        return carry


class _Delay(Carry, name="delay"):
    def next(self, draw, carry):
        return draw.fed(carry.shape[1])


class _DelayLine(Carry, name="delay line"):
    def next(self, draw, carry):
        return jnp.concatenate([draw.fed(1), carry[:, :-1]], axis=1)


class _Overwritten(Carry, name="overwritten by a constant"):
    def next(self, draw, carry):
        return jnp.full_like(carry, 0.3)


class _Unread(Carry, name="read by nothing"):
    def read(self, draw, carry):
        pass

    def next(self, draw, carry):
        return draw.value(carry.shape[1])


class _Counter(Carry, name="counter"):
    def initial(self, random, batch, width):
        return jnp.asarray(random.integers(0, 5, size=batch))

    def read(self, draw, carry):
        draw.indices.append(carry)
        draw.add(jnp.cos(carry.astype(jnp.float64))[:, None], free=False)

    def next(self, draw, carry):
        return carry + (draw.index(3) if draw.chance(0.5) else 1)


class _Flag(Carry, name="truth value"):
    def initial(self, random, batch, width):
        return jnp.asarray(random.random(batch) < 0.5)

    def read(self, draw, carry):
        value = draw.value()
        draw.add(jnp.where(carry[:, None], value, draw.function()(value)), free=False)

    def next(self, draw, carry):
        return draw.value()[:, 0] > draw.number() / 2


class _Key(Carry, name="key"):
    """Each row has a key of its own."""

    has_zero = False

    def initial(self, random, batch, width):
        return jax.random.split(jax.random.key(int(random.integers(100))), batch)

    def read(self, draw, carry):
        draw.add(jax.vmap(lambda key: jax.random.uniform(key, (2,), jnp.float64))(carry), free=False)

    def next(self, draw, carry):
        return jax.vmap(lambda key: jax.random.fold_in(key, 1))(carry)


class _Float32(Carry, name="float32"):
    def initial(self, random, batch, width):
        return normal(random, (batch, width), jnp.float32, 0.5)

    def read(self, draw, carry):
        draw.add(carry.astype(jnp.float64), free=False)

    def next(self, draw, carry):
        return 0.5 * carry + jnp.tanh(draw.value(carry.shape[1])).astype(jnp.float32)


class _Vector(Carry, name="without rows"):
    by_rows = False

    def initial(self, random, batch, width):
        return jnp.asarray(random.normal(size=width) / 2)

    def read(self, draw, carry):
        draw.add(jnp.broadcast_to(carry, (draw.batch, carry.size)), free=False)

    def next(self, draw, carry):
        return 0.9 * jnp.sin(carry) + draw.fed(carry.size).mean(axis=0)


class _Number(Carry, name="Python number"):
    by_rows = False

    def initial(self, random, batch, width):
        return float(random.normal())

    def read(self, draw, carry):
        draw.add(carry * draw.value(), free=False)

    def next(self, draw, carry):
        return carry * 0.5 + jnp.tanh(draw.value().sum())
