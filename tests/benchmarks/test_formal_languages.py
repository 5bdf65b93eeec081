"""The tasks of the Chomsky hierarchy against slow readings of their strings."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.papers import chomsky
from benchmarks.papers.formal_languages import MODULUS, NO_ANSWER, REGULAR, REVERSE


LONGEST, BATCH = 9, 60
ANSWERS = {
    "even pairs": lambda text: sum(a != b for a, b in itertools.pairwise(text)) % 2,
    "modular arithmetic (simple)": lambda text: eval("".join("01234+*-"[letter] for letter in text)) % MODULUS,
    "parity check": lambda text: list(text).count(1) % 2,
    "cycle navigation": lambda text: (list(text).count(2) - list(text).count(0)) % MODULUS,
}


@pytest.mark.parametrize("language", REGULAR, ids=lambda language: language.name)
def test_the_blank_after_a_string_asks_for_its_answer(language):
    lengths = jnp.arange(BATCH) % LONGEST + 1
    letters, answers = language.draw(jax.random.key(0), lengths, LONGEST)
    assert letters.shape == answers.shape == (LONGEST + 1, BATCH)
    for length, column, answer in zip(lengths.tolist(), np.asarray(letters).T, np.asarray(answers).T, strict=True):
        length -= language.odd and length % 2 == 0
        expected = np.full(LONGEST + 1, NO_ANSWER)
        expected[length] = ANSWERS[language.name](column[:length])
        np.testing.assert_array_equal(answer, expected)
        assert (column[:length] < language.letters).all()
        assert (column[length:] == language.letters).all()


def test_the_blanks_after_a_string_ask_for_its_reverse():
    lengths = jnp.arange(BATCH) % LONGEST + 1
    letters, answers = REVERSE.draw(jax.random.key(0), lengths, LONGEST)
    assert letters.shape == answers.shape == (2 * LONGEST, BATCH)
    for length, column, answer in zip(lengths.tolist(), np.asarray(letters).T, np.asarray(answers).T, strict=True):
        expected = np.full(2 * LONGEST, NO_ANSWER)
        expected[length : 2 * length] = column[:length][::-1]
        np.testing.assert_array_equal(answer, expected)
        assert (column[length:] == REVERSE.letters).all()


@pytest.mark.parametrize("language", [*REGULAR, REVERSE], ids=lambda language: language.name)
def test_all_letters_occur(language):
    letters, answers = language.draw(jax.random.key(0), jnp.full(200, LONGEST), LONGEST)
    assert set(np.unique(letters)) == set(range(language.letters + 1))
    assert set(np.unique(answers)) == {NO_ANSWER, *range(language.classes)}


def test_steps_beyond_the_answer_change_no_loss():
    language, net = REGULAR[0], chomsky.NETS["RNN"]
    params = chomsky._init(net, language, jax.random.key(0))
    letters, answers = language.draw(jax.random.key(1), jnp.full(BATCH, 5), LONGEST)
    loss = chomsky._loss_of(net, language)
    np.testing.assert_allclose(
        loss(params, (letters, answers)), loss(params, (letters[:6], answers[:6])), rtol=1e-6, atol=0
    )
