"""`rnnscan trace`."""

import re
import subprocess
import sys

import pytest


MODEL = """
import jax
import jax.numpy as jnp
import rnnscan as rs

cell = rs.cells.GRU(3)
net = rs.bidirectional(cell)
params = cell.init(jax.random.key(0), 2)
arguments = (cell, params, None, jax.ShapeDtypeStruct((8, 3, 2), jnp.float32))
function = (lambda params, xs: rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1], params, jnp.ones((8, 3, 2)))
"""


@pytest.mark.parametrize(("attribute", "values"), [("cell", 5), ("net", 10), ("arguments", 5), ("function", 5)])
def test_it_takes_what_check_takes(rnnscan, attribute, values, tmp_path, monkeypatch):
    (tmp_path / "a_traced_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sizes = ["--inputs", "2", "--batch", "3", "--length", "8"]
    result = rnnscan("trace", f"a_traced_model:{attribute}", *sizes, "--every", "4")
    assert result.exit_code == 0, result.output
    assert f"{values} values at 2 steps" in result.stdout


def test_python_m_runs_the_command_line():
    ran = subprocess.run(
        [sys.executable, "-m", "rnnscan", "trace", "--help"], capture_output=True, text=True, check=True
    )
    assert "rnnscan trace" in ran.stdout


def test_it_shows_the_values_of_a_cell_and_draws_them(rnnscan, tmp_path):
    picture = tmp_path / "trace.png"
    sizes = ["--hidden", "4", "--inputs", "3", "--batch", "2", "--length", "12"]
    result = rnnscan("trace", "LSTM", *sizes, "--names", "gates, y", "--every", "5", "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "LSTM(hidden_size=4): 2 values at 3 steps" in result.stdout
    rows = re.findall(r"^(gates|y) +-\d\S* +\d", result.stdout, re.MULTILINE)
    assert rows == ["gates", "y"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_name_is_an_error(rnnscan):
    result = rnnscan("trace", "GRU", "--hidden", "4", "--length", "5", "--names", "gate")
    assert result.exit_code
    assert "Did you mean 'gates'?" in result.output
    assert "Traceback" not in result.output
