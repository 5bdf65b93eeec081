"""Other libraries on JAX, with their own cells, parameters and layout.

They compute a loss of the same sizes, with other values. Each function takes a workload of LSTMs or GRUs and imports
its library, which may be absent.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.rows import JaxRow
from benchmarks.workloads import Workload


DESCRIPTIONS = {
    "linen": "Flax `nn.RNN` with `OptimizedLSTMCell` or `GRUCell`, time-major",
    "nnx": "Flax `nnx.RNN` with `OptimizedLSTMCell` or `GRUCell`, time-major",
    "haiku": "`hk.dynamic_unroll` with `hk.LSTM` or `hk.GRU`; two layers as `hk.DeepRNN`",
    "equinox": "`eqx.nn.LSTMCell` or `GRUCell` under `jax.vmap` in `lax.scan`",
    "keras": "`keras.layers.LSTM` or `GRU` on the JAX backend, `stateless_call` under `jax.jit`, batch-major",
}


def linen(workload: Workload) -> JaxRow:
    from flax import linen as nn

    shape = workload.shape
    cell = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}[workload.family]
    model = nn.Sequential([nn.RNN(cell(shape.hidden), time_major=True) for _ in range(workload.layers)])
    xs = _inputs(workload)
    return _row(model.apply, jax.jit(model.init)(jax.random.key(0), xs), xs)


def nnx(workload: Workload) -> JaxRow:
    from flax import nnx

    shape = workload.shape
    cell = {"lstm": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}[workload.family]
    rngs = nnx.Rngs(0)
    sizes = [shape.features] + [shape.hidden] * workload.layers
    layers = [nnx.RNN(cell(inputs, shape.hidden, rngs=rngs), time_major=True, rngs=rngs) for inputs in sizes[:-1]]
    graph, params, *other = nnx.split(nnx.Sequential(*layers), nnx.Param, ...)

    def apply(params: Any, xs: Array) -> Array:
        # A copy, because an RNN counts its keys, and Flax allows that only in the trace that made the state.
        return nnx.merge(graph, params, *other, copy=True)(xs)

    return _row(apply, params, _inputs(workload))


def haiku(workload: Workload) -> JaxRow:
    import haiku as hk

    shape = workload.shape
    cell = {"lstm": hk.LSTM, "gru": hk.GRU}[workload.family]

    def unroll(xs: Array) -> Array:
        layers = [cell(shape.hidden) for _ in range(workload.layers)]
        core = hk.DeepRNN(layers) if len(layers) > 1 else layers[0]
        return hk.dynamic_unroll(core, xs, core.initial_state(shape.batch))[0]

    model: Any = hk.without_apply_rng(hk.transform(unroll))
    xs = _inputs(workload)
    return _row(model.apply, jax.jit(model.init)(jax.random.key(0), xs), xs)


def equinox(workload: Workload) -> JaxRow:
    import equinox as eqx

    shape = workload.shape
    cell = {"lstm": eqx.nn.LSTMCell, "gru": eqx.nn.GRUCell}[workload.family]
    sizes = [shape.features] + [shape.hidden] * workload.layers
    keys = jax.random.split(jax.random.key(0), workload.layers)
    layers = [cell(inputs, shape.hidden, key=key) for inputs, key in zip(sizes[:-1], keys, strict=True)]
    params, static = eqx.partition(layers, eqx.is_array)
    zeros = jnp.zeros((shape.batch, shape.hidden))

    def apply(params: Any, xs: Array) -> Array:
        for layer in eqx.combine(params, static):

            def step(carry: Any, x: Array, layer: Any = layer) -> tuple[Any, Array]:
                carry = jax.vmap(layer)(x, carry)
                return carry, carry[0] if isinstance(carry, tuple) else carry

            _, xs = lax.scan(step, (zeros, zeros) if workload.family == "lstm" else zeros, xs)
        return xs

    return _row(apply, params, _inputs(workload))


def keras(workload: Workload) -> JaxRow:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    shape = workload.shape
    layer = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}[workload.family]
    model = keras.Sequential([layer(shape.hidden, return_sequences=True) for _ in range(workload.layers)])
    xs = jnp.swapaxes(_inputs(workload), 0, 1)
    model.build(xs.shape)
    params = [variable.value for variable in model.trainable_variables]
    other = [variable.value for variable in model.non_trainable_variables]
    return _row(lambda params, xs: model.stateless_call(params, other, xs)[0], params, xs)


PEERS: dict[str, Callable[[Workload], JaxRow]] = {
    "linen": linen,
    "nnx": nnx,
    "haiku": haiku,
    "equinox": equinox,
    "keras": keras,
}


def _inputs(workload: Workload) -> Array:
    return workload.arguments()[1]


def _row(apply: Callable[..., Any], params: Any, xs: Array) -> JaxRow:
    def loss(params: Any, xs: Array) -> Array:
        ys = apply(params, xs)
        return jnp.sum(ys * ys)

    return JaxRow(loss, (params, xs))
