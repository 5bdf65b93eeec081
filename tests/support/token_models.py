"""What the tests of decoding share: small models over tokens, teacher forcing, and search by enumeration."""

import itertools
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from drawn import normal


HIDDEN = 3


def decoder(params, carry, token):
    """A decoder with an integer in its carry that matters, and a count that the rows share."""
    hidden = jnp.tanh(carry["hidden"] @ params["recurrent"] + params["embedding"][token])
    logits = hidden @ params["project"] + params["bias"] + 0.3 * carry["sum"][:, None] % 2
    new = {"hidden": hidden, "sum": carry["sum"] + token, "count": carry["count"] + 1}
    return new, logits + 0.2 * jnp.sin(carry["count"] + jnp.arange(logits.shape[-1]))


def with_aux(params, carry, token):
    """The same with aux that tells the path: the count, the token that came in and the hidden state."""
    new, logits = decoder(params, carry, token)
    rows = len(token)
    return new, (logits, {"token": token, "count": jnp.full(rows, carry["count"]), "hidden": carry["hidden"]})


@dataclass(frozen=True)
class Model:
    """A decoder's parameters and carry, all random."""

    params: Any
    carry: Any
    vocabulary: int

    @property
    def rows(self) -> int:
        return len(self.carry["sum"])

    def decode(self, decoder=decoder, *, start=1, end=0, max_steps=6, key=None, jit=True, **options):
        """rs.decode. Calls with equal options share a compiled function; keys and temperatures are its arguments."""
        options = {**options, "decoder": decoder, "start": start, "end": end, "max_steps": max_steps}
        if not jit:
            return rs.decode(params=self.params, carry=self.carry, key=key, **options)
        if key is not None and not isinstance(key, jax.Array):
            options["key"] = key
        try:
            run = compiled(**options)
        except TypeError:  # Not hashable.
            run = compiled.__wrapped__(**options)
        return run(self.params, self.carry, **{} if "key" in options else {"key": key})

    def row(self, number):
        """One row alone, as a batch of one."""
        carry = jax.tree.map(lambda leaf: leaf[number : number + 1] if leaf.ndim else leaf, self.carry)
        return Model(self.params, carry, self.vocabulary)


@lru_cache(maxsize=None, typed=True)
def compiled(**options):
    """rs.decode as a compiled function of params, carry and key."""
    return jax.jit(lambda params, carry, **key: rs.decode(params=params, carry=carry, **options, **key))


def model(seed=0, *, vocabulary=4, rows=3, scale=2.0):
    random = np.random.default_rng(seed)
    draw = lambda *shape: normal(random, shape, jnp.result_type(float))  # noqa: E731
    params = {
        "recurrent": draw(HIDDEN, HIDDEN),
        "embedding": draw(vocabulary, HIDDEN),
        "project": scale * draw(HIDDEN, vocabulary),
        "bias": draw(vocabulary),
    }
    carry = {"hidden": draw(rows, HIDDEN), "sum": jnp.asarray(random.integers(3, size=rows)), "count": jnp.asarray(2)}
    return Model(params, carry, vocabulary)


def teacher_forced(decoder, params, carry, start, tokens):
    """The log-probability of each token `(T, N)`, given those before it, by rs.scan."""
    tokens = jnp.asarray(tokens)
    inputs = jnp.concatenate([jnp.full((1, tokens.shape[1]), start), tokens[:-1]])
    return np.asarray(_forced(decoder, params, carry, inputs, tokens))


@partial(jax.jit, static_argnums=0)
def _forced(decoder, params, carry, inputs, tokens):
    def cell(params, carry, x):
        token, target = x
        carry, logits = decoder(params, carry, token)
        return carry, jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], axis=-1)[:, 0]

    return rs.scan(cell, params, carry, (inputs, tokens))[1]


def enumerate_row(model, *, start=1, end=0, max_steps=4, rewards=None, divisor=lambda length: 1.0):
    """All hypotheses of a model with one row, best first: pairs of a score and a tuple of tokens."""
    rewards = np.zeros(model.vocabulary) if rewards is None else np.asarray(rewards)
    live, done = [((), 0.0, model.carry)], []
    for length in range(1, max_steps + 1):
        extended = []
        for tokens, raw, carry in live:
            last = jnp.array([tokens[-1] if tokens else start])
            carry, log_probs = _one_step(model.params, carry, last)
            log_probs = np.asarray(log_probs)[0]
            extended += [((*tokens, v), raw + log_probs[v] + rewards[v], carry) for v in range(model.vocabulary)]
        live = [one for one in extended if one[0][-1] != end and length < max_steps]
        done += [
            (raw / divisor(length), tokens) for tokens, raw, _ in extended if tokens[-1] == end or length == max_steps
        ]
    return sorted(done, key=lambda pair: -pair[0])


@jax.jit
def _one_step(params, carry, last):
    carry, logits = decoder(params, carry, last)
    return carry, jax.nn.log_softmax(logits)


def tokens_of(decoded, row, place=None):
    """The tokens of a row, as a tuple without padding."""
    tokens, lengths = np.asarray(decoded.tokens), np.asarray(decoded.lengths)
    where = (row,) if place is None else (row, place)
    return tuple(tokens[(slice(0, lengths[where]), *where)].tolist())


def assert_padded(decoded, end):
    """After a sequence come end tokens, scores of 0 and aux of zeros; only the last token may be the end token."""
    lengths = np.asarray(decoded.lengths)
    for where in itertools.product(*map(range, lengths.shape)):
        length = lengths[where]
        tokens = np.asarray(decoded.tokens)[(slice(None), *where)]
        assert (tokens[length:] == end).all()
        assert (tokens[: max(length - 1, 0)] != end).all()
        assert length == len(tokens) or length == 0 or tokens[length - 1] == end
        for leaf in jax.tree.leaves((decoded.token_scores, decoded.aux)):
            assert (np.asarray(leaf)[(slice(length, None), *where)] == 0).all()
