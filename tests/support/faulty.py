"""Faults, planted in any cell, and the name of the check that must find each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import rnnscan as rs
from rnnscan.checking import CheckReport


@dataclass(frozen=True)
class Around:
    """A cell around another, with its parameters and its carry."""

    cell: Any

    def init(self, key, input_size):
        return self.cell.init(key, input_size)

    def initial_carry(self, x):
        return self.cell.initial_carry(x)

    def __call__(self, params, carry, x):
        return self.cell(params, carry, x)


def first_leaf(change, carry):
    """A carry whose first leaf is changed."""
    leaves, structure = jax.tree.flatten(carry)
    return jax.tree.unflatten(structure, [change(leaves[0]), *leaves[1:]])


class CarryWidens(Around):
    """A part of the carry that a constant of float32 makes wider."""

    def __call__(self, params, carry, x):
        carry, y = self.cell(params, carry, x)
        return first_leaf(lambda leaf: leaf * jnp.ones((), jnp.float32), carry), y


class RowsMixed(Around):
    """Inputs that are normalized over the batch."""

    def __call__(self, params, carry, x):
        return self.cell(params, carry, (x - x.mean(0)) / (1e-3 + x.std(0)))


class DropoutReused(Around):
    """A mask that does not depend on the step's number."""

    def with_key(self, key, params, x):
        kept = jax.random.bernoulli

        def step(params, carry, scanned):
            carry, y = self.cell(params, carry, scanned[0])
            return carry, jnp.where(kept(key, 0.5, y.shape), 2 * y, 0)

        return step


class GradientDetached(Around):
    """A part of the carry without a gradient."""

    def __call__(self, params, carry, x):
        return self.cell(params, first_leaf(lax.stop_gradient, carry), x)


@jax.custom_vjp
def _wrong(y):
    return jnp.sin(y)


_wrong.defvjp(lambda y: (jnp.sin(y), y), lambda y, ct: (ct * jnp.cos(y) * 1.01,))


class DerivativeWrong(Around):
    """A custom derivative that is wrong by 1 %."""

    def __call__(self, params, carry, x):
        carry, y = self.cell(params, carry, x)
        return carry, _wrong(y)


def _own(cell, xs):
    return cell.initial_carry(xs[0])


def _before(xs, steps):
    """Inputs some steps earlier, with zeros before the first."""
    return jnp.concatenate([jnp.zeros_like(xs[:steps]), xs])[: len(xs)]


def window_of_12_leaks(cell):
    """A dilated convolution that reads twelve steps back, which documents do not bound."""

    def function(params, xs, reset):
        return rs.scan(cell, params, _own(cell, xs), xs + 0.5 * _before(xs, 12), reset=reset)[1]

    return function


def window_leaks(cell):
    """A convolution window over inputs, which documents do not bound."""

    def function(params, xs, reset):
        return rs.scan(cell, params, _own(cell, xs), xs + 0.5 * _before(xs, 1), reset=reset)[1]

    return function


def reset_misses_a_leaf(cell):
    """A loop whose resets leave the last part of the carry as it is."""

    def function(params, xs, reset):
        start = _own(cell, xs)

        def step(carry, scanned):
            x, reset = scanned
            leaves, structure = jax.tree.flatten(carry)
            kept = [
                jnp.where(reset.reshape(-1, *[1] * (old.ndim - 1)), new, old)
                for old, new in zip(leaves[:-1], jax.tree.leaves(start), strict=False)
            ]
            return cell(params, jax.tree.unflatten(structure, [*kept, leaves[-1]]), x)

        return lax.scan(step, start, (xs, reset))[1]

    return function


def mask_multiplies(cell):
    """A loop that holds the carry at padded steps by multiplication, so that NaN passes."""

    def function(params, xs, mask):
        def step(carry, scanned):
            x, valid = scanned
            new, y = cell(params, carry, x)

            def held(old, new):
                weight = valid.astype(new.dtype).reshape(-1, *[1] * (new.ndim - 1))
                return (weight * new + (1 - weight) * old).astype(old.dtype)

            return jax.tree.map(held, carry, new), held(jnp.zeros_like(y), y)

        return lax.scan(step, _own(cell, xs), (xs, mask))[1]

    return function


def chunk_is_off_by_one(cell, chunk=4):
    """A form whose first chunk hands on the carry of a step too early."""

    def form(params, carry, xs):
        _, ys = rs.scan(cell, params, carry, xs[:chunk])
        early, _ = rs.scan(cell, params, carry, xs[: chunk - 1])
        last, more = rs.scan(cell, params, early, xs[chunk:])
        return last, jnp.concatenate([ys, more])

    return form


def future_is_read_20_steps_ahead(cell):
    """Inputs that are added 20 steps early."""

    def function(params, xs):
        ahead = jnp.concatenate([xs, jnp.zeros_like(xs[:1]).repeat(20, axis=0)])[20:]
        return rs.scan(cell, params, _own(cell, xs), xs + ahead)[1]

    return function


def future_is_read(cell):
    """A stack whose second layer runs in reverse."""
    second = rs.cells.RNN(3)

    def function(params, xs):
        _, ys = rs.scan(cell, params, _own(cell, xs), xs)
        weights = jax.tree.map(
            lambda leaf: leaf.astype(ys.dtype), second.init(jax.random.key(1), input_size=ys.shape[-1])
        )
        return ys[..., :3] + rs.scan(second, weights, _own(second, ys), ys, reverse=True)[1]

    return function


def checked(model: Any, params: Any, xs: Any, **options: Any) -> CheckReport:
    """Check a cell from its own carry, or a function."""
    return rs.check(model, *((params, None, xs) if hasattr(model, "initial_carry") else (params, xs)), **options)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        check: the check that finds it.
        plant: makes a faulty model of a cell.
        as_form: whether it is a form of the cell, which itself is right.
    """

    check: str
    plant: Callable[[Any], Any]
    as_form: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def report(self, cell: Any, params: Any, xs: Any, **options: Any) -> CheckReport:
        if self.as_form:
            return checked(cell, params, xs, forms={"chunked": self.plant(cell)}, **options)
        return checked(self.plant(cell), params, xs, **options)


FAULTS = {
    "a leak through a convolution window": Fault("documents", window_leaks),
    "a reset that misses one leaf": Fault("documents", reset_misses_a_leaf),
    "a mask that multiplies NaN": Fault("padding", mask_multiplies),
    "a carry that widens": Fault("types", CarryWidens),
    "a chunk that is off by one": Fault("forms", chunk_is_off_by_one, as_form=True),
    "rows mixed by a norm": Fault("rows", RowsMixed),
    "the future read by a reversed stack": Fault("future", future_is_read),
    "dropout reused": Fault("randomness", DropoutReused),
    "a detached gradient": Fault("finite_differences", GradientDetached),
    "a wrong custom derivative": Fault("finite_differences", DerivativeWrong),
}


@dataclass(frozen=True)
class Distant:
    """A fault that shows in no fewer than `fewest` steps."""

    fault: Fault
    fewest: int


def _off_by_one(chunk):
    return Distant(Fault("forms", partial(chunk_is_off_by_one, chunk=chunk), as_form=True), chunk)


DISTANT = {
    "a chunk of 16 that is off by one": _off_by_one(16),
    "a chunk of 64 that is off by one": _off_by_one(64),
    "a leak over 12 steps": Distant(Fault("documents", window_of_12_leaks), 13),
    "the future read 20 steps ahead": Distant(Fault("future", future_is_read_20_steps_ahead), 21),
}

CELLS = {
    "LSTM": rs.cells.LSTM(4),
    "GRU": rs.cells.GRU(4),
    "MLSTM": rs.cells.MLSTM(4),
    "S6": rs.cells.S6(3, state_size=2),
    "stack": rs.stack(rs.cells.RNN(4), rs.cells.MinGRU(4)),
}
