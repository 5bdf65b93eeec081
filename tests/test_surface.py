"""What `import rnnscan` offers, and what it loads."""

import ast
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import rnnscan as rs


SOURCE = Path(rs.__file__).read_text()
EXTRAS = {"linen": "flax", "nnx": "flax", "train": "optax"}
LOADED_WHEN_USED = ("checking", "export", "graph", "insight", "interop", "sharding", "linen", "nnx", "train")


def names_for_type_checkers():
    """The names that the module imports or declares for a type checker."""
    block = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imported = {
        (alias.asname, "" if node.module == "rnnscan" else node.module.removeprefix("rnnscan."))
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return imported | {(node.target.id, "") for node in block.body if isinstance(node, ast.AnnAssign)}


def loaded_after(code):
    """The modules of the package that a new process has loaded after some code."""
    code += "; import sys; print(*[name for name in sys.modules if name.startswith(('rnnscan', 'jax'))])"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_type_checkers_and_python_see_the_same_names():
    for_python = {(name, rs._MODULE_OF.get(name, "")) for name in rs.__all__}
    assert names_for_type_checkers() == for_python
    assert len(rs.__all__) == len(set(rs.__all__))


def test_dir_is_what_is_public_and_nothing_else():
    assert dir(rs) == sorted(rs.__all__)
    assert not [name for name in dir(rs) if name.startswith("_") and name != "__version__"]


@pytest.mark.parametrize("name", rs.__all__)
def test_every_name_is_there(name):
    if name in EXTRAS and find_spec(EXTRAS[name]) is None:
        pytest.skip(f"{EXTRAS[name]} is not installed")
    value = getattr(rs, name)
    assert value is getattr(rs, name)
    if name in rs._MODULE_OF:
        assert value.__module__.startswith(f"rnnscan.{rs._MODULE_OF[name]}")
        assert value.__name__ == name


def test_another_name_is_an_error():
    with pytest.raises(AttributeError, match=r"module 'rnnscan' has no attribute 'scann'"):
        rs.scann  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name", "near"),
    [
        (rs, "LSTM", "rnnscan.cells.LSTM"),
        (rs, "lstm", "rnnscan.cells.LSTM"),
        (rs, "memory_reports", "rnnscan.memory_report"),
        (rs.cells, "Lstm", "rnnscan.cells.LSTM"),
        (rs.cells, "LayerNormLstm", "rnnscan.cells.LayerNormLSTM"),
    ],
)
def test_a_name_that_is_not_there_names_the_nearest(module, name, near):
    with pytest.raises(AttributeError) as error:
        getattr(module, name)
    assert str(error.value) == f"module {module.__name__!r} has no attribute {name!r}. Did you mean {near}?"


@pytest.mark.parametrize("module", [rs, rs.cells])
def test_names_that_tools_ask_for_get_no_hint(module):
    for name in ("__wrapped__", "_repr_html_", "qwertyuiop"):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'$"):
            getattr(module, name)


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert rs.__version__ == project["version"]
    root = Path(__file__).parents[1]
    assert f"\nversion: {project['version']}\n" in (root / "CITATION.cff").read_text()
    assert f"\n## [{project['version']}] - " in (root / "CHANGELOG.md").read_text()


def test_an_import_loads_what_is_used_and_nothing_else():
    assert loaded_after("import rnnscan") == {"rnnscan"}
    loaded = loaded_after("import rnnscan as rs; rs.scan; rs.cells.LSTM(3); rs.layer; rs.stack; rs.Memory; rs.name")
    assert "rnnscan.scanning" in loaded
    assert not [name for name in loaded if name.startswith(tuple(f"rnnscan.{each}" for each in LOADED_WHEN_USED))]
    assert "rnnscan.insight.explain" in loaded_after("import rnnscan as rs; rs.explain")


def test_a_module_that_is_imported_first_does_not_hide_a_function():
    code = "import rnnscan.{}; import rnnscan as rs; assert not hasattr(rs.{}, '__path__') and callable(rs.{})"
    for module, name in (("scanning", "scan"), ("decoding.decode", "decode"), ("compose.stack", "stack")):
        subprocess.run([sys.executable, "-c", code.format(module, name, name)], check=True)
