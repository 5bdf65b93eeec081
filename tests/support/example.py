"""What the tests of examples/ share: an example as a module, and its command."""

import importlib.util
from pathlib import Path
from types import ModuleType

from typer import Typer
from typer.testing import CliRunner


def load(name: str) -> ModuleType:
    """An example as a module."""
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType, *arguments: str) -> str:
    """Run an example's command and return what it prints."""
    app = Typer()
    app.command()(module.main)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output
