"""`rnnscan trace`."""

import re


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
