"""Each check can fail: for each there is a fault that it names first, and most of them it names alone."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.checking import forms
from rnnscan.checking.registry import CHECKS
from rnnscan.nets.base import Net
from rnnscan.nets.pieces import BOTH_DIRECTIONS


CELL = rs.cells.RNN(3)
XS = jax.ShapeDtypeStruct((8, 3, 3), jnp.float32)
PARAMS = CELL.init(jax.random.key(0), 3)


@dataclass(frozen=True)
class FaultyNet(Net):
    """A layer with a fault in its call."""

    cell: Any = CELL

    @property
    def names(self):
        return self.cell.names

    @property
    def output_size(self):
        return self.cell.output_size

    def init(self, key, input_size):
        return self.cell.init(key, input_size)

    def initial_carry(self, xs):
        return rs.layer(self.cell).initial_carry(xs)

    def __call__(self, params, xs, *, carry=None, **options):
        return rs.layer(self.cell)(params, xs, carry=carry, **options)


class ReadsOneStepBack(FaultyNet):
    """Reads the input before, which its carry does not hold."""

    def __call__(self, params, xs, **options):
        carry, ys = super().__call__(params, xs, **options)
        return carry, ys + 0.1 * jnp.concatenate([jnp.zeros_like(xs[:1]), xs[:-1]])


class ForgetsTheStepsDone(FaultyNet):
    """Draws the masks of the first steps in each window."""

    def __call__(self, params, xs, first_step=0, **options):
        return super().__call__(params, xs, **options)


class FlipsByTheWholeLength(FaultyNet):
    """Runs backward by length, but flips outputs with their padding."""

    @property
    def needs_whole(self):
        return BOTH_DIRECTIONS

    def __call__(self, params, xs, seq_lengths=None, **options):
        layer = rs.layer(self.cell, reverse=True)
        if seq_lengths is None:
            return layer(params, xs, **options)
        flipped = rs.reverse_by_length(xs, seq_lengths)
        carry, ys = super().__call__(params, flipped, seq_lengths=seq_lengths, **options)
        return carry, jnp.flip(ys, 0)


class LosesAStepBetweenSegments(FaultyNet):
    """Segments of its own, the second of which begins with the carry of a step too early."""

    def __call__(self, params, xs, carry=None, memory=rs.Memory(), **options):
        if memory is None or memory.segment is None or len(xs) <= memory.segment:
            return super().__call__(params, xs, carry=carry, memory=memory, **options)
        first, second = xs[: memory.segment], xs[memory.segment :]
        _, ys = super().__call__(params, first, carry=carry, **options)
        early, _ = super().__call__(params, first[:-1], carry=carry, **options)
        carry, more = super().__call__(params, second, carry=early, **options)
        return carry, jnp.concatenate([ys, more])


class NewtonStopsEarly(FaultyNet):
    """A result in parallel that did not converge."""

    def __call__(self, params, xs, parallel=None, **options):
        carry, ys = super().__call__(params, xs, **options)
        return carry, ys if parallel is None else ys + 1e-4


def wrong_transpose(params, carry, x):
    def double(residual, value):
        return 2 * value

    def pull(residual, ct):
        return 2.1 * ct

    carry = jnp.tanh(params * carry + jax.custom_derivatives.linear_call(double, pull, (), x))
    return carry, carry


@jax.custom_batching.custom_vmap
def _double(x):
    return 2 * x


@_double.def_vmap
def _(axis_size, in_batched, x):
    return 2.1 * x, in_batched[0]


@jax.custom_jvp
def _doubled(x):
    return _double(x)


_doubled.defjvp(lambda primals, tangents: (_doubled(*primals), 2 * tangents[0]))


def wrong_batching(params, carry, x):
    carry = jnp.tanh(params * carry + _doubled(x))
    return carry, carry


def decay(params, carry, x):
    carry = params * carry + x
    return carry, carry


def by_division(params, carry, xs):
    """The decays of all steps from cumulative products, which float32 cannot divide by."""
    powers = params ** jnp.arange(1, len(xs) + 1)[:, None, None]
    ys = powers * (carry + jnp.cumsum(xs / powers, axis=0))
    return ys[-1], ys


def of_net(net, **options):
    return rs.check(net, PARAMS, XS, **options)


def of_cell(cell, params, carry=None, **options):
    return rs.check(cell, params, jnp.zeros((3, 3)) if carry is None else carry, XS, **options)


FIRST = {
    "steps": lambda **options: of_net(ReadsOneStepBack(), **options),
    "windows": lambda **options: of_net(ForgetsTheStepsDone(rs.dropout(CELL, 0.5)), **options),
    "reverse": lambda **options: of_net(FlipsByTheWholeLength(), **options),
    "memory": lambda **options: of_net(LosesAStepBetweenSegments(), **options),
    "parallel": lambda **options: of_net(NewtonStopsEarly(), **options),
    "transformations": lambda **options: of_cell(wrong_batching, jnp.float32(0.5), **options),
    "precision": lambda **options: of_cell(decay, jnp.float32(0.2), forms={"by division": by_division}, **options),
}


@pytest.mark.parametrize("check", FIRST)
def test_a_check_finds_its_fault(check):
    report = FIRST[check](only=check)
    assert report.failed == (check,)
    assert "Error" not in report[check].detail, report[check].detail


@pytest.mark.slow
@pytest.mark.parametrize("check", FIRST)
def test_it_names_the_fault_first(check):
    report = FIRST[check]()
    # An input before the first step of a run is missing at each start: of a window, and in float32 of every step.
    # Documents of a net that runs backward are runs with lengths.
    others = {"steps": ("documents", "windows", "precision"), "reverse": ("documents",)}
    assert report.failed == (check, *others.get(check, ()))


def test_a_transpose_that_is_wrong_is_found():
    report = of_cell(wrong_transpose, jnp.float32(0.5), only="transformations")
    assert "by jax.jvp, and" in report["transformations"].detail


def test_an_export_that_differs_is_found(monkeypatch):
    load = forms.load

    class Off:
        def __init__(self, path):
            self.loaded = load(path)

        def predict(self, *inputs):
            carry, ys = self.loaded.predict(*inputs)
            return carry, ys * 1.01

    assert of_cell(CELL, PARAMS, only="export", carry=(jnp.zeros((3, 3)),)).ok
    monkeypatch.setattr(forms, "load", Off)
    report = of_cell(CELL, PARAMS, only="export", carry=(jnp.zeros((3, 3)),))
    assert report.failed == ("export",)
    assert "before the export" in report["export"].detail


def leaks_backward(axis, shift):
    """The identity, whose gradient also has a part of its neighbor's cotangent."""

    @jax.custom_vjp
    def identity(xs):
        return xs

    def pull(_, ct):
        rolled = jnp.roll(ct, shift, axis)
        ends = jnp.arange(len(ct)) == (len(ct) - 1 if shift < 0 else 0)
        return (ct + 0.1 * jnp.where(ends[:, None, None] & (axis == 0), 0, rolled),)

    identity.defvjp(lambda xs: (xs, None), pull)
    return identity


@pytest.mark.parametrize(("check", "axis", "shift"), [("future", 0, 1), ("rows", 1, 1), ("padding", 0, 1)])
def test_a_leak_of_the_backward_pass_alone_is_found(check, axis, shift):
    identity = leaks_backward(axis, shift)

    def function(params, xs, seq_lengths=None):
        return params * identity(xs)

    report = rs.check(function, jnp.float32(2), XS, only=check)
    assert report.failed == (check,)
    assert "the gradient of xs" in report[check].detail


def test_a_leak_of_the_backward_pass_between_documents_is_found():
    identity = leaks_backward(0, -1)

    def function(params, xs, segment_ids):
        return params * identity(xs)

    report = rs.check(function, jnp.float32(2), XS, only=["future", "documents"])
    assert report.failed == ("documents",)
    assert "must be 0 for a loss of the document" in report["documents"].detail


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_mask_that_multiplies_is_found_by_what_is_not_finite(value):
    """Zero times a number is zero, so only NaN and inf show it."""

    def function(params, xs, reset):
        def step(carry, scanned):
            x, begins = scanned
            carry = jnp.tanh(params * carry * (1 - begins.astype(x.dtype)[:, None]) + x)
            return carry, carry

        return jax.lax.scan(step, jnp.zeros_like(xs[0]), (xs, reset))[1]

    report = rs.check(function, jnp.float32(0.5), XS, only=["documents"])
    assert report.failed == ("documents",)
    assert "becomes nan" in report["documents"].detail


def test_numbers_that_are_drawn_while_tracing_are_found():
    random = np.random.default_rng(0)

    def step(params, carry, x):
        carry = jnp.tanh(carry + params * x * random.random())
        return carry, carry

    report = of_cell(step, jnp.float32(0.5), only="randomness")
    assert report.failed == ("randomness",)
    assert "traced again, without a key" in report["randomness"].detail


@pytest.mark.parametrize("advances", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_a_key_in_the_carry_must_advance(advances, typed):
    def step(params, carry, x):
        state, key = carry
        used = key
        if advances:
            key, used = jax.random.split(key)
        state = jnp.tanh(params * state + x) * jax.random.bernoulli(used, 0.5, x.shape)
        return (state, key), state

    key = jax.random.key(0) if typed else jax.random.PRNGKey(0)
    report = of_cell(step, jnp.float32(0.5), carry=(jnp.zeros((3, 3)), key), only="randomness")
    assert report.ok == advances
    if not advances:
        assert "carry/1 is a key that a step draws from and hands on as it was" in report["randomness"].detail


def test_variational_dropout_says_that_steps_share_a_mask():
    for each, holds in (("step", True), ("sequence", True)):
        cell = rs.dropout(CELL, 0.5, each=each)
        assert rs.check(cell, PARAMS, None, XS, only="randomness").ok == holds


def test_all_checks_have_a_fault_here_or_in_test_faults():
    from faulty import FAULTS

    assert {*FIRST, "export", *(fault.check for fault in FAULTS.values())} == {*CHECKS}
