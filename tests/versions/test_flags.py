"""`make test-remat` runs the tests with each flag of JAX's new transformations that the installed jax knows."""

import os
import re
import subprocess
import sys

import jax
import pytest

from jax_flags import known, usable
from known_bugs import known_bugs
from pages import ROOT


(NEW_FLAGS,) = re.findall(r"^NEW_FLAGS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
# The first version that knows each.
SINCE = {
    "JAX_REMAT3": (0, 10, 2),
    "JAX_SCAN3": (0, 10, 0),
    "JAX_CUSTOM_VJP3": (0, 10, 0),
    "JAX_CUSTOM_JVP3": (0, 11, 1),
}


def test_the_flags_are_known_from_the_stated_version_on():
    assert set(NEW_FLAGS.split()) == set(SINCE)
    assert set(known(SINCE)) == {flag for flag, since in SINCE.items() if jax.__version_info__ >= since}


def test_a_flag_that_jax_does_not_have_is_not_known():
    assert known(["JAX_NO_SUCH_TRANSFORMATION"]) == []


def test_scan3_is_left_out_while_jax_has_no_gradient_of_it():
    (bug,) = [bug for bug in known_bugs() if bug.program == "gradient_with_scan3.py"]
    assert set(known(SINCE)) - set(usable(SINCE)) == ({"JAX_SCAN3"} if bug.is_stated() else set())


@pytest.mark.parametrize("flag", known(SINCE))
def test_a_known_flag_is_read_from_the_environment(flag):
    code = f"import jax; print(jax.config.{flag.lower()})"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, flag: "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"
