"""The tables of docs/versions.md are what pyproject.toml and the Makefile say."""

import re
import sys
import tomllib
from importlib.metadata import version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pages import ROOT, code, table


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Those for working on rnnscan itself.
NOT_FOR_USERS = {"notebooks", "bench", "bench-small", "papers", "docs", "dist", "core", "dev", "pages", "coverage"}


def required():
    """(package, extra, versions) of pyproject.toml, without an extra for what rnnscan always needs."""
    yield "Python", "", SpecifierSet(PROJECT["requires-python"])
    extras = {name: those for name, those in PROJECT["optional-dependencies"].items() if name not in NOT_FOR_USERS}
    for extra, those in {"": PROJECT["dependencies"], **extras}.items():
        for one in map(Requirement, those):
            if one.name != "rnnscan":
                yield one.name, extra, one.specifier


def test_the_supported_versions_are_those_of_pyproject():
    stated = {
        (package, extra, SpecifierSet(code(versions)))
        for package, extras, versions in table("versions.md", "package")
        for extra in re.findall(r"`([^`]+)`", extras) or [""]
    }
    assert stated == set(required())


def test_the_pairs_of_python_and_jax_are_those_of_the_makefile():
    text = (ROOT / "Makefile").read_text()
    (oldest,) = re.findall(r"^OLDEST_JAX := jax==(\S+)", text, re.MULTILINE)
    (newer,) = re.findall(r"^PYTHONS \?= (.*)$", text, re.MULTILINE)
    stated = [(python, code(jax)) for python, jax, _ in table("versions.md", "Python")]
    least = PROJECT["requires-python"].removeprefix(">=")
    pairs = reversed(re.findall(r"python(\S+),jax(\S+)", newer))
    newest = next(jax for python, jax in stated if python == least and jax != oldest)
    assert stated == [(least, oldest), (least, newest), *pairs]


def test_what_is_installed_is_one_of_the_pairs():
    """`make test` takes the newest jax, so this says when there is one that the page does not know."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    stated = [code(jax) for python, jax, _ in table("versions.md", "Python") if python == here]
    assert any(version("jax") in SpecifierSet(re.sub(r"^(?=\d)", "==", jax)) for jax in stated)
