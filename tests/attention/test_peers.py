"""One step of attending is that of flax and Keras, run beside rnnscan."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_on_jax as keras
from rnnscan import attention
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

BATCH, STEPS, SIZE, HEADS = 3, 5, 6, 2
LENGTHS = np.array([5, 2, 1])


def draw(*shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def attend(mechanism, params, encoder, query, valid):
    """Context and weights, in the place of the gradients' arguments."""
    encoded = mechanism.encode(params, jnp.where(valid[..., None], encoder, 0), None)
    context, _, weights = mechanism.attend(params, encoded, valid, query, jnp.zeros((BATCH, SIZE)), ())
    return context, weights


def with_gradients(function, *arguments):
    def loss(*arguments):
        context, weights = function(*arguments)
        return jnp.sum(jnp.sin(context)) + jnp.sum(weights**2), (context, weights)

    return jax.jit(jax.grad(loss, argnums=tuple(range(len(arguments))), has_aux=True))(*arguments)


def test_multi_head_attention_is_that_of_flax():
    """Its key bias changes nothing, and its value bias is a part of the output's."""
    module = nn.MultiHeadDotProductAttention(HEADS, qkv_features=SIZE, out_features=SIZE, param_dtype=jnp.float64)
    mechanism = attention.MultiHead(SIZE, SIZE, HEADS)
    encoder, query = draw(BATCH, STEPS, SIZE, seed=0), draw(BATCH, SIZE, seed=1)
    valid = jnp.arange(STEPS) < LENGTHS[:, None]
    weights = {
        name: {"kernel": draw(SIZE, SIZE, seed=seed), "bias": draw(SIZE, seed=seed + 10)}
        for seed, name in enumerate(("query", "key", "value", "out"))
    }

    def flax(weights, encoder, query):
        by_head = lambda leaf: leaf.reshape(*leaf.shape[:-1], HEADS, SIZE // HEADS)  # noqa: E731
        params = {name: jax.tree.map(by_head, weights[name]) for name in ("query", "key", "value")}
        kernel = weights["out"]["kernel"].reshape(HEADS, SIZE // HEADS, SIZE)
        params["out"] = {"kernel": kernel, "bias": weights["out"]["bias"]}
        outputs, state = module.apply(
            {"params": params},
            query[:, None],
            encoder,
            mask=valid[:, None, None, :],
            sow_weights=True,
            mutable="intermediates",
        )
        return outputs[:, 0], state["intermediates"]["attention_weights"][0][:, :, 0]

    def rnnscan(weights, encoder, query):
        params = {f"{name}_kernel": weights[name]["kernel"] for name in ("query", "key", "value")}
        params |= {"output_kernel": weights["out"]["kernel"], "bias": weights["query"]["bias"]}
        params["output_bias"] = weights["out"]["bias"] + weights["value"]["bias"] @ weights["out"]["kernel"]
        return attend(mechanism, params, encoder, query, valid)

    assert_trees_close(
        with_gradients(rnnscan, weights, encoder, query), with_gradients(flax, weights, encoder, query), tolerance=1e-9
    )


# Keras' tanh on JAX casts float64 to float32.
@pytest.mark.parametrize(("kind", "tolerance"), [("additive", 1e-5), ("dot", 1e-9)])
def test_additive_and_dot_attention_are_those_of_keras(kind, tolerance):
    encoder, query = draw(BATCH, STEPS, SIZE, seed=0), draw(BATCH, SIZE, seed=1)
    score = draw(SIZE, seed=2)
    valid = jnp.arange(STEPS) < LENGTHS[:, None]
    if kind == "additive":
        layer = keras.layers.AdditiveAttention(dtype="float64")
        mechanism = attention.Additive(SIZE, SIZE, use_bias=False)
    else:
        layer = keras.layers.Attention(dtype="float64")
        mechanism = attention.Dot(SIZE)
    layer.build([(BATCH, 1, SIZE), (BATCH, STEPS, SIZE)])

    def of_keras(encoder, query, score):
        scale = [score] if kind == "additive" else []
        (outputs, weights), _ = layer.stateless_call(
            scale, [], [query[:, None], encoder], mask=[None, valid], return_attention_scores=True
        )
        return outputs[:, 0], weights[:, 0]

    def rnnscan(encoder, query, score):
        identity = jnp.eye(SIZE)
        params = {"query_kernel": identity, "key_kernel": identity, "score_kernel": score}
        return attend(mechanism, params if kind == "additive" else {}, encoder, query, valid)

    given = encoder, query, score
    assert_trees_close(with_gradients(rnnscan, *given), with_gradients(of_keras, *given), tolerance=tolerance)
