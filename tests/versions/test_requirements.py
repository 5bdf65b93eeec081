"""The versions of jax that pyproject.toml allows: those that are tested, and none with a bug that excludes it."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pages import ROOT


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = {canonicalize_name(one.name): one.specifier for one in map(Requirement, PROJECT["dependencies"])}
MAKEFILE = (ROOT / "Makefile").read_text()

both = pytest.mark.parametrize("package", ["jax", "jaxlib"])


@both
@pytest.mark.parametrize("version", ["0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.12.0.1"])
def test_a_supported_version_is_allowed(package, version):
    assert version in REQUIRED[package]


@both
@pytest.mark.parametrize("version", ["0.9.2", "0.11.1", "0.13.0"])
def test_another_version_is_refused(package, version):
    assert version not in REQUIRED[package]


@both
def test_make_test_oldest_runs_with_the_oldest_version_that_is_allowed(package):
    (oldest,) = re.findall(rf"^OLDEST_JAX := .*\b{package}==(\S+)", MAKEFILE, re.MULTILINE)
    lower = [one.version for one in REQUIRED[package] if one.operator == ">="]
    assert oldest in REQUIRED[package]
    assert lower == [oldest.removesuffix(".0")]


def test_make_test_pythons_has_a_pair_for_each_newer_minor_version():
    (pairs,) = re.findall(r"^PYTHONS \?= (.*)$", MAKEFILE, re.MULTILINE)
    pinned = sorted(re.findall(r"jax~=(\d+\.\d+)\.0", pairs))
    assert pinned == ["0.11", "0.12"]
    assert all(f"{minor}.0" in REQUIRED["jax"] for minor in pinned)
