"""Every small loop runs, with its gradient, and beside other libraries where they are installed."""

import pytest
from typer.testing import CliRunner

from benchmarks.small_loops import LOOPS, app, seconds_of
from benchmarks.small_page import with_section
from benchmarks.small_peers import HEADINGS, rows_of_peers
from benchmarks.small_steps import USES
from benchmarks.small_uses import measure


@pytest.fixture(autouse=True)
def few_runs(monkeypatch):
    monkeypatch.setattr("benchmarks.small_uses._SECONDS", 0)
    monkeypatch.setattr("benchmarks.small_uses._COMPILATIONS", 1)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_takes_time(name):
    forward, gradient = seconds_of(name, steps=3, calls=2)
    assert min(forward, gradient) > 0


@pytest.mark.parametrize("name", USES)
def test_a_use_takes_time_by_both(name):
    result = measure(name, steps=3, rounds=1)
    for pair in (result.forward, result.training, result.compiling):
        assert min(*pair.plain, *pair.rnnscan) > 0
        assert pair.ratio > 0


def test_peers_have_the_same_log_likelihood_or_are_not_installed():
    rows = [*rows_of_peers(steps=30, rounds=1)]
    assert {row[1] for row in rows} >= {"plain", "rnnscan", "numba", "statsmodels"}
    assert {len(row) for row in rows} == {len(HEADINGS)}


def test_a_page_has_a_section_for_each_version_and_choice(tmp_path):
    page, options = (
        tmp_path / "page.md",
        ["uses", "--name", "GARCH(1, 1)", "--steps", "3", "--rounds", "1", "--no-peers"],
    )
    result = CliRunner().invoke(app, [*options, "--write", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    for title in ("jax 0.9.1, with the flag", "jax 0.9.1, without the flag", "jax 9.1, with the flag"):
        text = with_section(with_section(text, title, "| old |"), title, "| new |")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles[0] == "## jax 9.1, with the flag"
    assert titles[2:] == ["## jax 0.9.1, without the flag", "## jax 0.9.1, with the flag"]
    assert "| old |" not in text
    assert "| GARCH(1, 1) |" in text
    assert "| median |" in text
    assert "| worst |" in text
