"""The core, which runs with every jax, is the properties of docs/versions.md, and tests show each of them."""

import ast
import re
from collections import Counter

from interpreters import find
from pages import ROOT, table


MAKEFILE = (ROOT / "Makefile").read_text()
MARKS = ("core", "newest")
PROPERTIES = {name: mark.strip("`") for name, _, mark in table("versions.md", "property")}


def marks():
    """Each use of a mark in the tests: (mark, property)."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr=mark)) if mark in MARKS:
                    (name,) = map(ast.literal_eval, node.args)
                    yield mark, name


def test_each_property_has_tests_and_each_mark_names_a_property():
    uses = Counter(marks())
    assert {name for _, name in uses} == set(PROPERTIES)
    assert not [name for name, mark in PROPERTIES.items() if not uses[mark, name]]


def test_the_makefile_runs_marks_and_names_no_file_of_the_core():
    (files,) = re.findall(r"^CORE_TESTS := (.*)$", MAKEFILE, re.MULTILINE)
    assert files.startswith("$(shell grep ")
    runs = re.findall(r'\$\(PYTEST\) -m "([^"]*)" \$\(CORE_TESTS\)', MAKEFILE)
    assert runs == ["core and not slow", "(core or newest) and not slow", "core and not slow"]


def interpreter(path, code):
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_is_found_on_the_path_then_among_the_newest_of_pyenv(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert find("python3.99") is None
    for version, code in (("3.99.2", 0), ("3.99.10", 0), ("3.99.11", 1)):
        interpreter(tmp_path / f"pyenv/versions/{version}/bin/python3.99", code)
    found = str(tmp_path / "pyenv/versions/3.99.10/bin/python3.99")
    assert find("python3.99") == found
    # As the shim of pyenv, which fails where no version is selected.
    on_path = interpreter(tmp_path / "path/python3.99", 127)
    assert find("python3.99") == found
    on_path.write_text("#!/bin/sh\nexit 0\n")
    assert find("python3.99") == str(on_path)
    assert find("python3.98") is None
