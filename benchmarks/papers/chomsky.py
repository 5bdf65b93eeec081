"""The tasks of the Chomsky hierarchy: trained on lengths 1 to 40, scored on lengths 41 to 100."""

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import rnnscan as rs
from benchmarks.papers.formal_languages import NO_ANSWER, REGULAR, REVERSE, Language
from benchmarks.papers.result import Figure
from benchmarks.papers.training import train


STEPS, BATCH, CLIP = 10_000, 128, 1.0
LONGEST, LENGTHS, STRINGS = 40, range(41, 101), 512
SOLVED = 0.9  # the paper's bar for a score
# The public code's simple network has relu, as Haiku's has. One with tanh did not solve cycle navigation.
NETS = {"RNN": rs.layer(rs.cells.RNN(64, activation="relu")), "LSTM": rs.layer(rs.cells.LSTM(32))}
RATES = {"RNN": 1e-3, "LSTM": 3e-3}
SOURCE = "Delétang et al. 2023, lengths 41 to 500"


def figures() -> Iterator[Figure]:
    """The scores, which must be on the side of the bar that the paper has them on."""
    for language in REGULAR:
        yield _figure(language, "RNN")
        yield _figure(language, "LSTM")
    # An LSTM would take two minutes more.
    yield _figure(REVERSE, "RNN")


def _figure(language: Language, name: str) -> Figure:
    net = NETS[name]
    started = time.perf_counter()
    params = _init(net, language, jax.random.key(0))
    params = train(_loss_of(net, language), params, _draw_of(language), steps=STEPS, rate=RATES[name], clip=CLIP)
    score, regular = _score(net, language, params), language is not REVERSE
    return Figure(
        f"{language.name}, {name} of {net.output_size} units",
        f"accuracy on lengths {LENGTHS[0]} to {LENGTHS[-1]}",
        "solved: at least 90 %" if regular else "not solved: below 90 %",
        f"{100 * score:.1f} %",
        (score >= SOLVED) is regular,
        time.perf_counter() - started,
        SOURCE,
    )


def _init(net: Any, language: Language, key: jax.Array) -> Any:
    of_net, of_head = jax.random.split(key)
    kernel = jax.nn.initializers.lecun_normal()(of_head, (net.output_size, language.classes))
    params = net.init(of_net, input_size=language.letters + 1)
    return {"net": params, "kernel": kernel, "bias": jnp.zeros(language.classes)}


def _logits(net: Any, params: Any, letters: jax.Array, alphabet: int) -> jax.Array:
    _, ys = net(params["net"], jax.nn.one_hot(letters, alphabet + 1))
    return jax.nn.relu(ys) @ params["kernel"] + params["bias"]


def _loss_of(net: Any, language: Language) -> Any:
    def loss(params: Any, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        letters, answers = batch
        answered = answers != NO_ANSWER
        logits = _logits(net, params, letters, language.letters)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(answered, answers, 0))
        return losses.mean(where=answered)

    return loss


def _draw_of(language: Language) -> Any:
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_length, of_strings = jax.random.split(key)
        length = jax.random.randint(of_length, (), 1, LONGEST + 1)
        return language.draw(of_strings, jnp.full(BATCH, length), LONGEST)

    return draw


def _score(net: Any, language: Language, params: Any) -> float:
    """The accuracy of letters, averaged over lengths as the paper does."""

    @jax.jit
    def accuracy(params: Any, length: jax.Array) -> jax.Array:
        lengths = jnp.full(STRINGS, length)
        letters, answers = language.draw(jax.random.fold_in(jax.random.key(1), length), lengths, LENGTHS[-1])
        logits = _logits(net, params, letters, language.letters)
        return (logits.argmax(-1) == answers).mean(where=answers != NO_ANSWER)

    return float(jnp.stack([accuracy(params, jnp.asarray(length)) for length in LENGTHS]).mean())
