"""The reference has every public name, and what it says of arguments is so."""

import importlib
import inspect
import pkgutil
import re
from types import ModuleType

import pytest

import rnnscan
from pages import DOCS


# What has public names of its own; the engine has none, and the command line says by --help what it does.
PACKAGES = [
    "rnnscan",
    "rnnscan.attention",
    "rnnscan.cells",
    "rnnscan.checking",
    "rnnscan.compose",
    "rnnscan.control",
    "rnnscan.decoding",
    "rnnscan.export",
    "rnnscan.insight",
    "rnnscan.graph",
    "rnnscan.interop",
    "rnnscan.linen",
    "rnnscan.nets",
    "rnnscan.nnx",
    "rnnscan.sharding",
    "rnnscan.checkpointing",
    "rnnscan.train",
]

NOT_PUBLIC = {f"rnnscan.{name}" for name in ("_flax", "_net", "_util", "cli", "engine", "inside", "ir", "planning")}
# Public modules that are no packages: what they define themselves is public.
MODULES = ["rnnscan.interop.cudnn", "rnnscan.interop.safetensors", "rnnscan.truncated"]

ENTRIES = {
    page.name: re.findall(r"^::: (\S+)\n(?: {4}options:\n {6}heading: (\S+)\n)?", page.read_text(), re.MULTILINE)
    for page in (DOCS / "reference").glob("*.md")
}
PATHS = [path for entries in ENTRIES.values() for path, _ in entries]


def public_objects():
    """Where each public function and class is defined, by where it is public."""
    found = {}
    for name in [*PACKAGES, *MODULES]:
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or not (inspect.isroutine(value) or inspect.isclass(value)):
                continue
            if value.__module__ == name or (name in PACKAGES and value.__module__.startswith("rnnscan.")):
                value = inspect.unwrap(value)
                found[f"{name}.{attribute}"] = f"{value.__module__}.{value.__qualname__}"
    return found


def found_at(path):
    """The object at the path of an entry."""
    module, _, attribute = path.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_every_package_is_public_or_not():
    packages = {f"rnnscan.{module.name}" for module in pkgutil.iter_modules(rnnscan.__path__) if module.ispkg}
    top = {path for path in PACKAGES if path.count(".") == 1}
    assert packages == top | NOT_PUBLIC


def test_every_public_name_is_in_the_reference_once():
    public = public_objects()
    assert len(public) > 100
    missing = {name for name, path in public.items() if path not in PATHS}
    assert not missing
    assert len(PATHS) == len(set(PATHS))


@pytest.mark.parametrize("page", ENTRIES)
def test_every_entry_is_there_and_documented_and_under_its_name(page):
    for path, heading in ENTRIES[page]:
        documented = found_at(path)
        assert inspect.getdoc(documented), path
        if isinstance(documented, ModuleType):
            continue
        package = heading.rpartition(".")[0]
        root = "rnnscan" if package == "rs" else f"rnnscan.{package}"
        name = heading.removeprefix("rs.").rpartition(".")[-1]
        assert inspect.unwrap(getattr(importlib.import_module(root), name)) is inspect.unwrap(documented), path


@pytest.mark.parametrize("page", ENTRIES)
def test_the_arguments_in_a_docstring_are_those_of_the_signature(page):
    for path, _ in ENTRIES[page]:
        documented = found_at(path)
        section = re.search(r"^Args:\n((?: {4}.*\n|\n)+)", inspect.getdoc(documented) or "", re.MULTILINE)
        if section is None:
            continue
        arguments = re.findall(r"^ {4}(\w+): ", section[1], re.MULTILINE)
        assert arguments, path
        # A class of Flax is called by way of a metaclass.
        called = documented.__init__ if inspect.isclass(documented) else documented
        assert set(arguments) <= set(inspect.signature(called).parameters), path
