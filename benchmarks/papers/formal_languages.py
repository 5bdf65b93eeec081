"""Tasks of Delétang et al., "Neural Networks and the Chomsky Hierarchy" (2023), in the terms of its public code.

A task makes strings of lengths that may be traced, at the front of steps that all lengths share. A blank asks for each
letter of the answer; steps beyond are blanks, and have no answer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax


Pair = tuple[jax.Array, jax.Array]

NO_ANSWER = -1
MODULUS = 5
PLUS, TIMES = MODULUS, MODULUS + 1  # MODULUS + 2 is minus


@dataclass(frozen=True)
class Language:
    """A task.

    Attributes:
        name: the name of the task in the paper.
        letters: the number of letters of strings; the blank is the next one.
        classes: the number of letters of answers.
        strings: makes letters, [longest, batch], of a key, `longest` and the number of strings.
        answer: the one letter of the answer, [batch], of letters and lengths; None: the string in reverse.
        odd: whether lengths must be odd; an even one becomes the one below.
    """

    name: str
    letters: int
    classes: int
    strings: Callable[[jax.Array, int, int], jax.Array]
    answer: Callable[[jax.Array, jax.Array], jax.Array] | None
    odd: bool = False

    def steps(self, longest: int) -> int:
        """The number of steps for strings up to this length and their answers."""
        return 2 * longest if self.answer is None else longest + 1

    def draw(self, key: jax.Array, lengths: jax.Array, longest: int) -> tuple[jax.Array, jax.Array]:
        """Strings of these lengths and blanks, and the letters of answers or `NO_ANSWER`: both [steps, batch]."""
        letters = self.strings(key, longest, len(lengths))
        lengths = lengths - (1 - lengths % 2) if self.odd else lengths
        steps = jnp.arange(self.steps(longest))[:, None]
        padded = jnp.pad(letters, ((0, len(steps) - longest), (0, 0)))
        if self.answer is None:
            answers = jnp.take_along_axis(padded, jnp.clip(2 * lengths - 1 - steps, 0), axis=0)
            answered = (steps >= lengths) & (steps < 2 * lengths)
        else:
            answers = self.answer(letters, lengths)
            answered = steps == lengths
        return jnp.where(steps < lengths, padded, self.letters), jnp.where(answered, answers, NO_ANSWER)


def _uniform(letters: int) -> Callable[[jax.Array, int, int], jax.Array]:
    return lambda key, longest, batch: jax.random.randint(key, (longest, batch), 0, letters)


def _expressions(key: jax.Array, longest: int, batch: int) -> jax.Array:
    """Digits at even places, operators at odd ones."""
    of_digits, of_operators = jax.random.split(key)
    digits = jax.random.randint(of_digits, (longest, batch), 0, MODULUS)
    operators = jax.random.randint(of_operators, (longest, batch), MODULUS, MODULUS + 3)
    return jnp.where(jnp.arange(longest)[:, None] % 2 == 0, digits, operators)


def _up_to(letters: jax.Array, lengths: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(len(letters))[:, None] < lengths, letters, 0)


def _unequal_pairs(letters: jax.Array, lengths: jax.Array) -> jax.Array:
    """Neighbors differ an odd number of times where the ends differ."""
    return letters[0] ^ jnp.take_along_axis(letters, lengths[None] - 1, axis=0)[0]


def _parity(letters: jax.Array, lengths: jax.Array) -> jax.Array:
    return _up_to(letters, lengths).sum(0) % 2


def _position(letters: jax.Array, lengths: jax.Array) -> jax.Array:
    """Letters 0, 1 and 2 are a step left, none, and a step right on a circle of five."""
    return _up_to(letters - 1, lengths).sum(0) % MODULUS


def _value(letters: jax.Array, lengths: jax.Array) -> jax.Array:
    """The value of an expression, modulo five, with products before sums."""

    def add(carry: Pair, pair: Pair) -> tuple[Pair, None]:
        (total, term), (operator, digit) = carry, pair
        next_term = jnp.where(operator == PLUS, digit, jnp.where(operator == TIMES, term * digit, -digit))
        return ((total + jnp.where(operator == TIMES, 0, term)) % MODULUS, next_term % MODULUS), None

    places = jnp.arange(1, len(letters) - 1, 2)
    inside = places[:, None] < lengths
    operators = jnp.where(inside, letters[places], PLUS)
    digits = jnp.where(inside, letters[places + 1], 0)
    (total, term), _ = lax.scan(add, (jnp.zeros_like(letters[0]), letters[0]), (operators, digits))
    return (total + term) % MODULUS


REGULAR = (
    Language("even pairs", 2, 2, _uniform(2), _unequal_pairs),
    Language("modular arithmetic (simple)", MODULUS + 3, MODULUS, _expressions, _value, odd=True),
    Language("parity check", 2, 2, _uniform(2), _parity),
    Language("cycle navigation", 3, MODULUS, _uniform(3), _position),
)
REVERSE = Language("reverse string", 2, 2, _uniform(2), None)
