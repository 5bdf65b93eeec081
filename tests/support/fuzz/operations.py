"""The operations that a random cell is made of. Each takes values of a draw and returns another, `(batch, width)`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import rnnscan as rs
from fuzz.draw import LABELS, Draw
from fuzz.rules import product_with_vjp, sine_with_jvp


OPERATIONS: dict[str, Callable[[Draw], Any]] = {}


def operation(function: Callable[[Draw], Any]) -> Callable[[Draw], Any]:
    OPERATIONS[function.__name__.strip("_").replace("_", " ")] = function
    return function


@operation
def elementwise(draw):
    return draw.function()(draw.value())


@operation
def two_elementwise(draw):
    return draw.function()(draw.function()(draw.value()))


@operation
def add(draw):
    value, other = draw.pair()
    return value + other if draw.chance(0.5) else value - other


@operation
def multiply(draw):
    value, other = draw.pair()
    return jnp.tanh(value * other)


@operation
def divide(draw):
    value, other = draw.pair()
    return value / (1 + other**2)


@operation
def maximum(draw):
    value, other = draw.pair()
    return jnp.maximum(value, other + draw.number())


@operation
def clip(draw):
    return jnp.clip(draw.value(), -0.5 - abs(draw.number()), 0.4 + abs(draw.number()))


@operation
def bias(draw):
    value = draw.value()
    return value + draw.weights(value.shape[1])


@operation
def scale(draw):
    value = draw.value()
    return value * jnp.exp(draw.weights(value.shape[1]) / 4)


@operation
def scale_by_a_scalar(draw):
    return draw.value() * draw.weights(1)[0]


@operation
def product(draw):
    value = draw.value()
    return value @ draw.weights(value.shape[1], draw.integer(1, 4))


@operation
def product_with_the_transpose(draw):
    value = draw.value()
    return value @ draw.weights(draw.integer(1, 4), value.shape[1]).T


@operation
def product_of_what_is_invariant(draw):
    value = draw.value()
    inner = draw.integer(1, 3)
    function = draw.pick([jnp.sin, lambda weights: weights, lambda weights: -weights[:, ::-1]])
    return value @ function(draw.weights(value.shape[1], inner) @ draw.weights(inner, 3))


@operation
def batched_product(draw):
    value = draw.value()
    return jnp.einsum("nw,nwv->nv", value, draw.weights(draw.batch, value.shape[1], 2))


@operation
def outer_product(draw):
    value, other = draw.value(), draw.value()
    outer = jnp.tanh(value[:, :, None] * other[:, None, :])
    return jnp.einsum("nwv,nv->nw", outer, other) / other.shape[1]


@operation
def attention(draw):
    value = draw.value()
    keys = draw.weights(3, value.shape[1])
    return jax.nn.softmax(value @ keys.T) @ keys


@operation
def convolution(draw):
    kernel = draw.weights(2, 1, 1)
    layout = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(draw.value()[..., None], kernel, (1,), "SAME", dimension_numbers=layout)[..., 0]


@operation
def reduction(draw):
    value = draw.value()
    reduce = draw.pick([jnp.sum, jnp.mean, jnp.max, jax.nn.logsumexp, jnp.prod])
    if reduce in (jnp.max, jnp.prod):  # The greatest must be one, and no factor zero.
        value = jnp.exp(value / 4 + draw.weights(value.shape[1]))
    return jnp.tanh(reduce(value, axis=1, keepdims=True))


@operation
def reduction_and_broadcast(draw):
    value = draw.value()
    return value - value.mean(axis=1, keepdims=True)


@operation
def reduction_over_rows(draw):
    value, other = draw.pair()
    return value + other.mean(axis=0)


@operation
def cumulative_sum(draw):
    return jnp.cumsum(draw.value(), axis=1, dtype=jnp.float64) / 2


@operation
def slices_joined(draw):
    value, other = draw.value(), draw.value()
    return jnp.concatenate([value[:, 1:], other[:, :2], value[:, :1]], axis=1)


@operation
def parts(draw):
    value = draw.value(4)
    first, second = jnp.split(value, 2, axis=1)
    return draw.function()(first) * second


@operation
def padded(draw):
    return jnp.pad(draw.value(), ((0, 0), (1, 1)), constant_values=draw.number())


@operation
def turned(draw):
    return jnp.flip(draw.value(), axis=1) if draw.chance(0.5) else jnp.roll(draw.value(), 1, axis=1)


@operation
def transpose(draw):
    value = draw.value()
    return draw.function()(value.T @ draw.weights(draw.batch, draw.batch)).T


@operation
def reshape(draw):
    value = draw.value()
    return (draw.function()(value.reshape(-1)) * draw.weights(value.size)).reshape(value.shape)


@operation
def where(draw):
    value, other = draw.pair()
    return jnp.where(value > draw.number(), draw.function()(value), other)


@operation
def cond(draw):
    """With a name in one of its branches."""
    value, other = draw.pair()
    here, there, label = draw.function(), draw.function(), draw.label()
    weights, threshold = draw.weights(value.shape[1]), draw.number() / 2
    return lax.cond(value.sum() > threshold, lambda: draw.named(here(value) * weights, label), lambda: there(other))


@operation
def switch(draw):
    value = draw.value()
    branches = [draw.function() for _ in range(3)]
    return lax.switch(draw.index(3)[0], branches, value)


@operation
def scan_within(draw):
    """A loop over rows of weights, with a name in its body."""
    value = draw.value()
    function, label = draw.function(), draw.label()
    weights = draw.weights(2, value.shape[1])

    def body(state, row):
        state = draw.named(function(state + row), label)
        return state, state.sum(axis=1)

    final, sums = lax.scan(body, value, weights)
    return jnp.concatenate([final[:, :2], jnp.tanh(sums.T)], axis=1)


@operation
def fori_loop(draw):
    value = draw.value()
    function, weights = draw.function(), draw.weights(value.shape[1])
    return lax.fori_loop(0, 2, lambda index, state: function(state) * weights + index / 4, value)


@operation
def rnnscan_within(draw):
    value = draw.value()
    # A name of the inner scan is not one of the cell, even where it is spelt alike.
    square, label = draw.weights(value.shape[1], value.shape[1]), draw.pick(LABELS)
    options = draw.inner(engine=draw.pick(["auto", "lax"]), reverse=False)

    def cell(params, carry, x):
        carry = jnp.tanh(rs.name(carry @ params, label) + x)
        return carry, carry.sum(axis=1)

    final, sums = rs.scan(cell, square, value, draw.weights(3, value.shape[1]), **options)
    return final + sums[-1][:, None]


@operation
def while_of_integers(draw):
    def halved(state):
        return state[0] // 2, state[1] + 1

    count = lax.while_loop(lambda state: state[0].max() > 0, halved, (draw.index(9), 0))[1]
    return draw.value() * jnp.cos(count * 1.0)


@operation
def rows_of_weights(draw):
    return draw.weights(3, draw.integer(1, 4))[draw.index(3)]


@operation
def take_along_axis(draw):
    value = draw.value(3)
    return jnp.take_along_axis(value, draw.index(3)[:, None], axis=1)


@operation
def one_hot(draw):
    return jax.nn.one_hot(draw.index(3), 3, dtype=jnp.float64) * draw.value(3)


@operation
def scatter(draw):
    value, other = draw.pair()
    place = value.at[jnp.arange(draw.batch), draw.index(value.shape[1])]
    return place.add(other[:, 0]) if draw.chance(0.5) else place.set(other[:, 0])


@operation
def dynamic_slice(draw):
    return lax.dynamic_slice_in_dim(draw.value(4), draw.index(3)[0], 2, axis=1)


@operation
def dynamic_update(draw):
    return lax.dynamic_update_slice_in_dim(draw.value(4), draw.value(2), draw.index(3)[0], axis=1)


@operation
def sort(draw):
    value = draw.value()
    return jnp.sort(value + draw.weights(value.shape[1]), axis=1)


@operation
def truth_as_float(draw):
    value, other = draw.pair()
    return (value > draw.number()).astype(jnp.float64) + other / 2


@operation
def integers_as_float(draw):
    return draw.value() + draw.index(3).astype(jnp.float64)[:, None] / 3


@operation
def rounded_to_integers(draw):
    """No gradient goes through it."""
    value, other = draw.pair()
    return (3 * value + draw.number()).astype(jnp.int32) / 4 + other


@operation
def softmax(draw):
    return draw.pick([jax.nn.softmax, jax.nn.log_softmax])(draw.value())


@operation
def relu(draw):
    """Away from its corner."""
    rectify = draw.pick([jax.nn.relu, jax.nn.relu6, jax.nn.leaky_relu, jax.nn.elu, jnp.abs])
    if rectify is jax.nn.relu:
        draw.features.add("relu with its rule")
    value = draw.value()
    return rectify(value + draw.weights(value.shape[1]))


@operation
def logsumexp(draw):
    value, other = draw.pair()
    return jnp.logaddexp(value, other) - jax.nn.logsumexp(other, axis=1, keepdims=True)


@operation
def custom_vjp(draw):
    return product_with_vjp(*draw.pair())


@operation
def custom_jvp(draw):
    return sine_with_jvp(draw.value())


@operation
def stop_gradient(draw):
    value, other = draw.pair()
    return lax.stop_gradient(draw.function()(value)) * other


@operation
def jit_within(draw):
    """With a name in it, and in a jit within the jit."""
    value, other = draw.pair()
    function, label, inner_label = draw.function(), draw.label(), draw.label()

    @jax.jit
    def compute(value, other):
        mixed = jax.jit(lambda value: draw.named(jnp.sin(value) + other, inner_label))(value)
        return draw.named(function(mixed), label) * other

    if label is not None or inner_label is not None:
        draw.features.add("name within jit")
    return jnp.tanh(compute(value, other))


@operation
def checkpoint_within(draw):
    value = draw.value()
    function, weights, label = draw.function(), draw.weights(value.shape[1]), draw.label()
    return jax.checkpoint(lambda value: jnp.sin(draw.named(function(value), label)) * weights)(value)


@operation
def vmap_within(draw):
    value, index = draw.value(), draw.index(2)
    function, label = draw.function(), draw.label()
    return jax.vmap(lambda row, index: draw.named(function(row), label) + row[index % row.size])(value, index)
