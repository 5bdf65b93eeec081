"""`rnnscan check` says by name what does not hold, and exits with 1."""

import pytest


MODEL = """
import jax.numpy as jnp
import rnnscan as rs

cell = rs.cells.GRU(3)
net = rs.bidirectional(cell)
arguments = (lambda params, xs: xs - xs.mean(1, keepdims=True), None, jnp.ones((8, 3, 2)))
number = 3
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "a_checked_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_cell_of_the_library(rnnscan):
    result = rnnscan("check", "lstm", "--only", "types", "--only", "rows", "--hidden", "4")
    assert result.exit_code == 0, result.output
    assert "LSTM(hidden_size=4): 2 hold" in result.output


def test_the_number_of_steps(rnnscan):
    result = rnnscan("check", "gru", "--only", "rows", "--hidden", "4", "--steps", "20")
    assert result.exit_code == 0, result.output
    assert "20 steps (8 where a fault shows in few), 3 rows" in result.output


@pytest.mark.usefixtures("model")
def test_what_a_module_has(rnnscan):
    result = rnnscan("check", "a_checked_model:cell", "--only", "future")
    assert "GRU(hidden_size=3): 1 holds" in result.output
    result = rnnscan("check", "a_checked_model:net", "--only", "future")
    assert "1 does not apply" in result.output
    assert result.exit_code == 0


@pytest.mark.usefixtures("model")
def test_a_fault_exits_with_1(rnnscan):
    result = rnnscan("check", "a_checked_model:arguments", "--only", "rows")
    assert result.exit_code == 1
    assert "1 step, 2 rows: y at step 0, row 1 changes" in result.output
    assert rnnscan("check", "a_checked_model:arguments", "--only", "rows", "--skip", "rows").exit_code == 0


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a_checked_model:number"], "a cell must be callable"),
        (["LSTMM"], "Did you mean 'LSTM'"),
        (["LSTM", "--only", "documentz"], "Did you mean 'documents'"),
        (["a_checked_model:cell", "--hidden", "4"], "--hidden must be given with a cell of the library"),
    ],
)
def test_bad_arguments_exit_with_2(rnnscan, arguments, message):
    result = rnnscan("check", *arguments)
    assert result.exit_code == 2
    assert message in result.output
