"""Exported language models: their vocabulary is data, and their text that of the live model."""

import hashlib
import json
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from exports import rewrite


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")

pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.

TOKENS = [b"a", b"b", b"ab", "é".encode(), b"\n"]


class Counter:
    """The next token is that after the last, in the order of the vocabulary; the carry counts steps."""

    def initial_carry(self, x):
        return {"steps": jnp.zeros(x.shape, jnp.int32)}

    def __call__(self, params, carry, x):
        steps = carry["steps"] + 1
        return {"steps": steps}, params["scale"] * jax.nn.one_hot((x + 1) % 5, 5) * jnp.sign(steps)[:, None]


def save(folder, tokens=TOKENS, rows=1, **options):
    cell = Counter()
    fn = lambda params, xs: rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]  # noqa: E731
    given = {"cell": cell, "vocabulary": tokens} | options
    rs.export.save(folder, fn, {"scale": jnp.float32(9)}, [jnp.zeros((3, rows), jnp.int16)], ["cpu"], **given)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "model"
    save(folder)
    return rs.export.load(folder)


def test_text_follows_the_prompt(loaded):
    assert list(loaded.generate("ab", 4, temperature=0)) == ["é".encode(), b"\n", b"a", b"b"]
    assert list(loaded.generate("aba", 2, temperature=0)) == [b"b", b"ab"]
    assert list(loaded.generate("aé", 1, temperature=0)) == [b"\n"]
    assert list(loaded.generate("ab", 0)) == []
    drawn = [b"".join(loaded.generate(length=50, seed=seed, temperature=5.0)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_tokens_are_drawn_from_the_softmax(loaded):
    """Counts of 300 first tokens, by chi-squared with 4 degrees of freedom."""
    probabilities = np.asarray(jax.nn.softmax(jnp.array([0.0, 0, 0, 0, 9 / 5])))
    draws = [TOKENS.index(next(loaded.generate("é", 1, temperature=5.0, seed=seed))) for seed in range(300)]
    expected = 300 * probabilities
    assert ((np.bincount(draws, minlength=5) - expected) ** 2 / expected).sum() < 25


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-46])
def test_a_tiny_temperature_takes_the_likeliest_token(loaded, temperature):
    assert list(loaded.generate("a", 6, temperature=temperature)) == list(loaded.generate("a", 6, temperature=0.0))


@pytest.mark.bad_input
def test_wrong_arguments(loaded, tmp_path):
    for options, message in (
        ({"prompt": ""}, "at least one token"),
        ({"prompt": "abc"}, "consist of tokens of the vocabulary; got b'c' at byte 2"),
        ({"length": -1}, "`length` must be at least 0"),
        ({"temperature": -1.0}, "`temperature` must be finite and at least 0"),
        ({"temperature": float("inf")}, "`temperature` must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded.generate(**options)
    for tokens in ([], TOKENS[:4], [*TOKENS[:4], b""], [*TOKENS[:4], b"a"]):
        with pytest.raises(ValueError, match="`vocabulary`"):
            save(tmp_path / "a", tokens)
    with pytest.raises(ValueError, match=r"a step must run for one row, .*; got steps of 4 rows\. Name that axis"):
        save(tmp_path / "a", rows=4, dynamic=("T", None))
    with pytest.raises(TypeError, match="must be a list of bytes; got str at 0"):
        save(tmp_path / "a", list("abcde"))
    with pytest.raises(ValueError, match="must stream"):
        save(tmp_path / "a", cell=None)
    assert not (tmp_path / "a").exists()
    save(tmp_path / "a", vocabulary=None)
    with pytest.raises(ValueError, match="must be a language model with a vocabulary"):
        rs.export.load(tmp_path / "a").generate("a")


def test_a_vocabulary_that_is_not_as_it_was_saved(tmp_path):
    folder = tmp_path / "model"
    save(folder)
    fields = json.loads((folder / "manifest.json").read_text())
    (file,) = folder.glob("vocabulary-*.json")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"61", b"62", 1))
    with pytest.raises(ValueError, match=r"vocabulary-.* has been altered"):
        rs.export.load(folder)
    file.unlink()
    with pytest.raises(ValueError, match=r"vocabulary-.* is missing"):
        rs.export.load(folder)
    for forged in (b"[]", b'{"tokens": ["61"]}', b'{"tokens": ["x"]}', b'{"tokens": [1]}', b"[" * 100_000):
        digest = hashlib.sha256(forged).hexdigest()
        name = f"vocabulary-{digest[:16]}.json"
        (folder / name).write_bytes(forged)
        listed = {one: spec for one, spec in fields["files"].items() if one != file.name}
        rewrite(folder, files=listed | {name: {"bytes": len(forged), "sha256": digest}}, vocabulary_file=name)
        with pytest.raises(ValueError, match="vocabulary"):
            rs.export.load(folder)
    rewrite(folder, vocabulary_file="../vocabulary.json")
    with pytest.raises(ValueError, match="the file of the vocabulary"):
        rs.export.load(folder)


def test_the_longest_token_that_fits_comes_first():
    vocabulary = import_module("rnnscan.export.vocabulary").Vocabulary(tuple(TOKENS))
    for text in ("", "ababba", "aéb\n"):
        assert b"".join(vocabulary.tokens[number] for number in vocabulary.encode(text)) == text.encode()
    assert vocabulary.encode("aab") == [0, 2]
