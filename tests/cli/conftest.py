from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rnnscan.cli.app import app


@pytest.fixture
def rnnscan() -> Callable[..., Result]:
    """Run the command line in this process, on a terminal so wide that no line of it wraps."""

    def run(*arguments: str | Path) -> Result:
        return CliRunner(env={"COLUMNS": "500"}).invoke(app, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"recurrent networks " * 80)
    return path
