"""All the cells that properties are checked for."""

import importlib
import pkgutil

import pytest

import zoo
from zoo.case import Case


CASES: dict[str, Case] = {
    name: case
    for module in pkgutil.iter_modules(zoo.__path__)
    if module.name != "cases"
    for name, case in getattr(importlib.import_module(f"zoo.{module.name}"), "CASES", {}).items()
}


def first_forms() -> set[str]:
    """The first form of each type of cell."""
    first: dict[type, str] = {}
    for name, case in CASES.items():
        first.setdefault(type(case.cell), name)
    return set(first.values())


# The first form of each cell is in `make test`, the others in `make test-all`.
FIRST = first_forms()
EVERY = [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow]) for name in CASES]
