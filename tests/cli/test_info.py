"""`rnnscan info` prints what a bug report needs."""

import jax
from typer.testing import CliRunner

from rnnscan.cli.app import app


def test_versions_and_devices_are_shown():
    shown = CliRunner().invoke(app, ["info"])
    assert shown.exit_code == 0
    assert f"jax {jax.__version__}" in shown.output
    assert str(jax.devices()[0]) in shown.output


def test_a_cell_is_explained():
    assert "recurrent" in CliRunner().invoke(app, ["info", "GRU"]).output
    assert CliRunner().invoke(app, ["info", "GRUU"]).exit_code != 0
