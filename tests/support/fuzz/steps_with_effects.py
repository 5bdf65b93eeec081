"""Scans whose steps do something beside their results, or have derivatives or axes of their own."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import io_callback

from fuzz.layers import AXIS
from fuzz.leaves import STEPS, Run, Scan
from fuzz.rules import sine, sine_with_jvp


# How often each effect happened. Whoever counts clears it before, and waits for `jax.effects_barrier`.
HAPPENED: Counter[str] = Counter()


def _note(name: str, *values: Any) -> None:
    HAPPENED[name] += 1


def note_debug(value: Any, name: str = "debug") -> None:
    jax.debug.callback(partial(_note, name), value)


def note_ordered(value: Any, name: str = "ordered") -> None:
    io_callback(partial(_note, name), None, value, ordered=True)


def note_unordered(value: Any, name: str = "unordered") -> None:
    io_callback(partial(_note, name), None, value, ordered=False)


def _step(inner: Callable[[Any], Any], of_count: Callable[[Any], Any] = lambda count: None) -> Run:
    """A scan of a step that puts its hidden state through a function, and its count through another."""

    def run(scan: Scan, mapped: Any, shared: Any) -> Any:
        def cell(params: Any, carry: Any, x: Any) -> Any:
            hidden, count = carry
            of_count(count)
            hidden = inner(jnp.tanh(params * hidden + x))
            return (hidden, count + 1), hidden * 2

        xs = jnp.linspace(0.1, 1.0, STEPS)[:, None] * shared
        return scan(cell, shared[0], (mapped, jnp.int32(0)), xs)

    return run


def _nothing(value: Any) -> None:
    pass


def _sine_with_rule(on_forward: Callable[[Any], None], on_backward: Callable[[Any], None]) -> Any:
    """The sine, whose rules note that they run."""

    with_rule = jax.custom_vjp(sine)

    def forward(value: Any) -> Any:
        on_forward(value)
        return jnp.sin(value), jnp.cos(value)

    def backward(residual: Any, cotangent: Any) -> Any:
        on_backward(cotangent)
        return (cotangent * residual,)

    with_rule.defvjp(forward, backward)
    return with_rule


_with_effect_in_jvp = jax.custom_jvp(sine)


@_with_effect_in_jvp.defjvp
def _effect_in_jvp(primals: Any, tangents: Any) -> Any:
    note_debug(primals[0], "debug in jvp")
    return jnp.sin(primals[0]), tangents[0] * jnp.cos(primals[0])


@jax.custom_vjp
def _with_symbolic_zeros(value: Any, other: Any) -> Any:
    return value * other


def _forward_of_symbols(value: Any, other: Any) -> Any:
    return value.value * other.value, (other.value, (value.value,) if other.perturbed else ())


def _backward_of_symbols(residual: Any, cotangent: Any) -> Any:
    if isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        cotangent = jnp.zeros(cotangent.shape, cotangent.dtype)
    other, value = residual
    return cotangent * other, (value[0] * cotangent if value else None)


_with_symbolic_zeros.defvjp(_forward_of_symbols, _backward_of_symbols, symbolic_zeros=True)


def _ref(place: str, *, reads: bool) -> Run:
    """A ref that each step adds its hidden state to; where it reads the ref, it does so before."""

    def run(scan: Scan, mapped: Any, shared: Any) -> Any:
        ref = jax.new_ref(jnp.zeros((STEPS, 2)) if place == "xs" else jnp.zeros(2))

        def cell(params: Any, carry: Any, x: Any) -> Any:
            here = {"closure": ref, "params": params[1], "xs": x[1]}[place]
            hidden = jnp.tanh(params[0] * carry + x[0] + (here[...] * 0.1 if reads else 0.0))
            here[...] += hidden
            return hidden, hidden * 2

        signal = jnp.linspace(0.1, 1.0, STEPS)[:, None] * shared
        params = (shared[0], ref if place == "params" else None)
        carry, ys = scan(cell, params, mapped, (signal, ref if place == "xs" else None))
        return carry, ys, ref[...]

    return run


def _local_ref(scan: Scan, mapped: Any, shared: Any) -> Any:
    """A ref that lives within the step."""

    def cell(params: Any, carry: Any, x: Any) -> Any:
        ref = jax.new_ref(carry)
        ref[...] = jnp.tanh(ref[...] * params + x)
        carry = ref[...]
        return carry, carry

    return scan(cell, shared[0], mapped, jnp.linspace(0.1, 1.0, STEPS)[:, None] * shared)


def _in_branch(hidden: Any) -> Any:
    def noted(value: Any) -> Any:
        note_debug(value, "debug in a branch")
        return value * 0.9

    return lax.cond(hidden.sum() > 0.4, noted, lambda value: value * 1.1, hidden)


def _inner_scan(hidden: Any) -> Any:
    return lax.scan(lambda carry, x: (jnp.sin(carry + x), carry), hidden, jnp.arange(3.0))[0]


# Without effects that happen: any memory choice works.
PURE: dict[str, Run] = {
    "custom_jvp": _step(sine_with_jvp),
    "custom_vjp": _step(_sine_with_rule(_nothing, _nothing)),
    "custom_vjp in a branch": _step(
        lambda hidden: lax.cond(hidden.sum() > 0.4, _sine_with_rule(_nothing, _nothing), jnp.cos, hidden)
    ),
    "custom_vjp in an inner scan": _step(
        lambda hidden: lax.scan(lambda h, _: (_sine_with_rule(_nothing, _nothing)(h), h), hidden, length=2)[0]
    ),
    "custom_vjp with symbolic zeros": _step(lambda hidden: _with_symbolic_zeros(hidden, hidden)),
    "custom_vjp with symbolic zeros and a constant": _step(lambda hidden: _with_symbolic_zeros(hidden, jnp.ones(2))),
    "checkpoint": _step(jax.checkpoint(jnp.sin)),
    "checkpoint with a policy": _step(jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.everything_saveable)),
    "cond": _step(lambda hidden: lax.cond(hidden.sum() > 0.4, jnp.sin, jnp.cos, hidden)),
    "inner scan": _step(_inner_scan),
    "jit": _step(jax.jit(jnp.sin)),
    "vmap": _step(jax.vmap(jnp.sin)),
    "psum": _step(lambda hidden: hidden + 0.1 * lax.psum(hidden, AXIS)),
    "pmean": _step(lambda hidden: hidden - lax.pmean(hidden, AXIS)),
    "pmax": _step(lambda hidden: hidden - lax.stop_gradient(lax.pmax(lax.stop_gradient(hidden), AXIS))),
    "axis_index": _step(lambda hidden: hidden * (1 + lax.axis_index(AXIS))),
    "all_gather": _step(lambda hidden: hidden + lax.all_gather(hidden, AXIS).sum(axis=0)),
    "ppermute": _step(lambda hidden: hidden + lax.ppermute(hidden, AXIS, [(0, 1), (1, 2), (2, 0)])),
}
# With effects: they happen as often as in `lax.scan`, and a memory choice that would run them again is refused.
WITH_EFFECTS: dict[str, Run] = {
    "debug.callback": _step(lambda hidden: (note_debug(hidden), hidden)[1]),
    "debug.callback of the count": _step(lambda hidden: hidden, note_debug),
    "debug.callback in a branch": _step(_in_branch),
    "ordered io_callback of the count": _step(lambda hidden: hidden, note_ordered),
    "unordered io_callback of the count": _step(lambda hidden: hidden, note_unordered),
    "ordered io_callback": _step(lambda hidden: (note_ordered(lax.stop_gradient(hidden)), hidden)[1]),
    "debug in the forward rule": _step(_sine_with_rule(partial(note_debug, name="debug in fwd"), _nothing)),
    "debug in the backward rule": _step(_sine_with_rule(_nothing, partial(note_debug, name="debug in bwd"))),
    "io in the backward rule": _step(_sine_with_rule(_nothing, partial(note_ordered, name="io in bwd"))),
    "debug in the rule of custom_jvp": _step(_with_effect_in_jvp),
    "ref within the step": _local_ref,
    **{f"ref in {place}": _ref(place, reads=False) for place in ("closure", "params", "xs")},
    **{f"ref that is read in {place}": _ref(place, reads=True) for place in ("closure", "params", "xs")},
}
