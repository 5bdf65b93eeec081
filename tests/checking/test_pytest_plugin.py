"""The fixture of pytest."""

import subprocess
import sys
import tomllib
from pathlib import Path


ROOT = Path(__file__).parents[2]

TESTS = """
import jax
import jax.numpy as jnp
import rnnscan as rs

XS = jnp.ones((8, 3, 2))


def test_right(rnnscan_check):
    assert rnnscan_check(lambda params, xs: params * xs, 2.0, XS, only="rows").ok


def test_steps(rnnscan_check):
    assert rnnscan_check(lambda params, xs: params * xs, 2.0, XS, only="rows", steps=20).setting.startswith("20 steps")


def test_wrong(rnnscan_check):
    rnnscan_check(lambda params, xs: xs - xs.mean(1, keepdims=True), 2.0, XS, only="rows")
"""


def test_the_fixture_fails_a_test_by_the_names_of_the_checks(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "rnnscan.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        "test_it.py",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 2 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "CheckError" in ran.stdout
    assert "rows: 1 step, 2 rows: y at step 0" in ran.stdout
    assert "raise_if_failed" not in ran.stdout.split("short test summary")[1]


def test_the_plugin_is_installed_and_imports_no_jax():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"rnnscan.pytest_plugin": "rnnscan.pytest_plugin"}
    code = "import rnnscan.pytest_plugin, sys; assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
