"""The import graph of rnnscan: no circle, and no import on use but of extras and of what needs them."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
NEEDED = {"jax", "jaxlib", "jaxtyping", "numpy", "rnnscan"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted((ROOT / "rnnscan").rglob("*.py"))}


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    on_use: bool

    @property
    def is_of_an_extra(self) -> bool:
        package = self.imported.split(".")[0]
        return package not in NEEDED and package not in sys.stdlib_module_names


def imports_of(module: str) -> Iterator[Import]:
    """All imports of a module, but those for annotations alone."""
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(MODULES[module].read_text()), False)]
    while todo:
        node, on_use = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        on_use = on_use or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If)
        todo += [(child, on_use) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, on_use) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            for alias in node.names:
                of_module = f"{node.module}.{alias.name}"
                yield Import(module, of_module if of_module in MODULES else str(node.module), on_use)


@cache
def by_module() -> dict[str, list[Import]]:
    """The imports of every module, read when the first test asks."""
    return {module: list(imports_of(module)) for module in MODULES}


def all_imports() -> list[Import]:
    return [one for imports in by_module().values() for one in imports]


def needs_an_extra(module: str) -> bool:
    """Whether importing it imports an extra."""
    todo, seen = [module], {module}
    while todo:
        for one in by_module()[todo.pop()]:
            if one.is_of_an_extra and not one.on_use:
                return True
            if one.imported in MODULES and not one.on_use and one.imported not in seen:
                seen.add(one.imported)
                todo.append(one.imported)
    return False


def test_no_modules_import_each_other_in_a_circle():
    """Imports on use count as well, but for those of what needs an extra."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for one in all_imports():
        if one.imported in MODULES and not (one.on_use and needs_an_extra(one.imported)):
            graph[one.importer].add(one.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


# The engine's layers. A folder imports those before it only.
LAYERS = ["units", "costs", "cache", "analysis", "loops", "primitive", "one_kernel", "passes", "call", "plan", "run"]


def folder_of(module: str) -> str:
    """The folder of a module; a module at the top of the package is its own."""
    parent = MODULES[module].parent
    return module if parent.name == "rnnscan" else ".".join(parent.relative_to(ROOT).parts)


def test_no_folders_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {folder_of(module): set() for module in MODULES}
    for one in all_imports():
        if one.imported in MODULES and folder_of(one.imported) != folder_of(one.importer):
            graph[folder_of(one.importer)].add(folder_of(one.imported))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_a_layer_of_the_engine_imports_those_before_it():
    engine = "rnnscan.engine."
    assert {path.name for path in (ROOT / "rnnscan/engine").iterdir() if (path / "__init__.py").exists()} == {*LAYERS}
    for one in all_imports():
        if one.importer.startswith(engine) and one.imported.startswith(engine) and one.imported in MODULES:
            importer, imported = (name.removeprefix(engine).split(".")[0] for name in (one.importer, one.imported))
            assert LAYERS.index(imported) <= LAYERS.index(importer), f"{one.importer} imports {one.imported}"


def test_the_steps_as_data_know_no_engine():
    assert not [one for one in all_imports() if one.importer.startswith("rnnscan.ir") and "engine" in one.imported]


def test_only_extras_and_what_needs_them_are_imported_on_use():
    found = [
        f"{one.importer}: {one.imported}"
        for one in all_imports()
        if one.on_use and not one.is_of_an_extra and not (one.imported in MODULES and needs_an_extra(one.imported))
    ]
    assert not found


def test_there_are_imports_to_look_at():
    """Else the tests above would hold for any code."""
    assert Import("rnnscan.scanning", "rnnscan.memory", on_use=False) in all_imports()
    assert any(one.is_of_an_extra for one in all_imports())
    assert needs_an_extra("rnnscan.insight.picture")
    assert not needs_an_extra("rnnscan.scanning")
