from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from rnnscan.train import LanguageModel
from tiers import variants


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def lstm_step(weights: dict[str, np.ndarray], carry: tuple[np.ndarray, ...], x: np.ndarray) -> tuple[np.ndarray, ...]:
    hidden, state = carry
    gates = np.split(x @ weights["kernel"] + hidden @ weights["recurrent_kernel"] + weights["bias"], 4)
    state = sigmoid(gates[1]) * state + sigmoid(gates[0]) * np.tanh(gates[2])
    return sigmoid(gates[3]) * np.tanh(state), state


def gru_step(weights: dict[str, np.ndarray], carry: tuple[np.ndarray, ...], x: np.ndarray) -> tuple[np.ndarray, ...]:
    (hidden,) = carry
    from_input = np.split(x @ weights["kernel"] + weights["bias"], 3)
    from_hidden = np.split(hidden @ weights["recurrent_kernel"], 3)
    reset, update = sigmoid(from_input[0] + from_hidden[0]), sigmoid(from_input[1] + from_hidden[1])
    candidate = np.tanh(from_input[2] + reset * (from_hidden[2] + weights["recurrent_bias"]))
    return ((1 - update) * candidate + update * hidden,)


def rnn_step(weights: dict[str, np.ndarray], carry: tuple[np.ndarray, ...], x: np.ndarray) -> tuple[np.ndarray, ...]:
    return (np.tanh(x @ weights["kernel"] + carry[0] @ weights["recurrent_kernel"] + weights["bias"]),)


STEPS = {"lstm": (lstm_step, 2), "gru": (gru_step, 1), "rnn": (rnn_step, 1)}


def slow_loss(model: LanguageModel, params: Any, inputs: np.ndarray, targets: np.ndarray) -> float:
    """The mean cross-entropy, byte by byte in float64, from the cells' equations."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    step, states = STEPS[model.cell]
    losses = []
    for row in range(inputs.shape[1]):
        carries = [(np.zeros(model.hidden),) * states] * model.layers
        for byte, target in zip(inputs[:, row], targets[:, row], strict=True):
            x = params["embedding"][byte]
            for layer in range(model.layers):
                carries[layer] = step(params["cells"][f"layer_{layer}"], carries[layer], x)
                x = carries[layer][0]
            logits = x @ params["head"]["kernel"] + params["head"]["bias"]
            losses.append(np.log(np.exp(logits).sum()) - logits[target])
    return float(np.mean(losses))


def with_random_biases(params: Any, random: np.random.Generator) -> Any:
    """Biases start at zero, which would hide their being left out."""

    def fill(path: Any, leaf: Any) -> Any:
        is_bias = "bias" in jax.tree_util.keystr(path)
        return normal(random, leaf.shape, leaf.dtype) if is_bias else leaf

    return jax.tree_util.tree_map_with_path(fill, params)


@pytest.mark.parametrize(("cell", "layers"), [("lstm", 1), ("lstm", 2), ("gru", 1), ("rnn", 1)])
def test_the_loss_equals_a_slow_loop_over_bytes(cell: Any, layers: int, random: np.random.Generator) -> None:
    model = LanguageModel(cell=cell, hidden=6, layers=layers, embedding=5)
    params = with_random_biases(model.init(jax.random.key(1)), random)
    streams = random.integers(0, 256, (8, 3), np.int32)

    loss, _ = jax.jit(model.loss)(params, model.initial_carry(3), streams[:-1], streams[1:])

    np.testing.assert_allclose(loss, slow_loss(model, params, streams[:-1], streams[1:]), rtol=1e-5)


@pytest.mark.parametrize(
    ("cell", "memory"),
    variants(
        {
            "lstm, keep": ("lstm", rs.Memory()),
            "lstm, recompute": ("lstm", rs.Memory(recompute=("gates",))),
            "lstm, segments": ("lstm", rs.Memory(segment="sqrt")),
            "lstm, nested": ("lstm", rs.Memory(recompute="all", segment=(7, 3))),
            "gru, segments": ("gru", rs.Memory(recompute=("gates",), segment=5)),
            "rnn, recompute": ("rnn", rs.Memory(recompute=("preactivation",))),
        },
        ["rnn, recompute"],
    ),
)
def test_every_memory_choice_gives_the_same_loss_and_gradient(
    cell: Any, memory: rs.Memory, random: np.random.Generator
) -> None:
    model = LanguageModel(cell=cell, hidden=8, embedding=4)
    params = model.init(jax.random.key(2))
    streams = random.integers(0, 256, (17, 3), np.int32)

    def loss_and_gradient(memory: rs.Memory | None) -> Any:
        def loss(params: Any) -> Any:
            return model.loss(params, model.initial_carry(3), streams[:-1], streams[1:], memory=memory)[0]

        return jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(params))

    for actual, expected in zip(loss_and_gradient(memory), loss_and_gradient(None), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_a_carry_goes_on_where_the_window_before_ended(random: np.random.Generator) -> None:
    model = LanguageModel(hidden=8, embedding=4)
    params = model.init(jax.random.key(3))
    streams = random.integers(0, 256, (13, 2), np.int32)

    window_loss = jax.jit(model.loss)
    whole, carry_of_whole = window_loss(params, model.initial_carry(2), streams[:-1], streams[1:])
    first, carry = window_loss(params, model.initial_carry(2), streams[:6], streams[1:7])
    second, carry = window_loss(params, carry, streams[6:12], streams[7:13])

    np.testing.assert_allclose((first + second) / 2, whole, rtol=1e-6)
    for actual, expected in zip(jax.tree.leaves(carry), jax.tree.leaves(carry_of_whole), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def test_a_sample_follows_from_its_key() -> None:
    model = LanguageModel(hidden=8, embedding=4)
    params = model.init(jax.random.key(4))

    sample = model.sample(params, jax.random.key(0), 50)

    assert len(sample) == 50
    assert sample == model.sample(params, jax.random.key(0), 50)
    assert sample[:20] == model.sample(params, jax.random.key(0), 20)
    assert sample != model.sample(params, jax.random.key(1), 50)
    assert model.sample(params, jax.random.key(0), 0) == b""


def test_a_cold_sample_is_the_likeliest_byte_after_each(random: np.random.Generator) -> None:
    model = LanguageModel(cell="gru", hidden=8, embedding=4)
    params = with_random_biases(model.init(jax.random.key(5)), random)

    sample = model.sample(params, jax.random.key(0), 12, temperature=1e-4, first=ord("a"))

    read, carry = b"a", model.initial_carry(1)
    for byte in sample:
        carry, hidden = model.cells(params["cells"], carry, params["embedding"][jnp.array([read[-1]])])
        logits = hidden @ params["head"]["kernel"] + params["head"]["bias"]
        assert byte == int(logits[0].argmax())
        read += bytes([byte])


def test_a_warm_sample_follows_the_models_probabilities() -> None:
    model = LanguageModel(hidden=4, embedding=2)
    params = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(6)))
    params["head"]["bias"] = jnp.full(256, -jnp.inf).at[jnp.array([65, 66])].set(jnp.log(jnp.array([0.8, 0.2])))

    sample = model.sample(params, jax.random.key(0), 4000)

    assert set(sample) == {65, 66}
    assert abs(sample.count(b"A") / 4000 - 0.8) < 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, r"`hidden` must be at least 1; got 0\."),
        ({"layers": 0}, r"`layers` must be at least 1; got 0\."),
        ({"embedding": -1}, r"`embedding` must be at least 1; got -1\."),
    ],
)
def test_sizes_below_one_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageModel(**options)


@pytest.mark.bad_input
def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`cell` must be one of lstm, gru, rnn; got 'tree'\."):
        LanguageModel(cell="tree")


def test_a_temperature_of_zero_is_refused() -> None:
    model = LanguageModel(hidden=4, embedding=2)
    with pytest.raises(ValueError, match=r"`temperature` must be above 0; got 0\.0\."):
        model.sample(model.init(jax.random.key(0)), jax.random.key(0), 5, temperature=0.0)
