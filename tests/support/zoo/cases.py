"""All the cells that properties are checked for."""

import importlib
import pkgutil

import zoo
from zoo.case import Case


CASES: dict[str, Case] = {
    name: case
    for module in pkgutil.iter_modules(zoo.__path__)
    if module.name != "cases"
    for name, case in getattr(importlib.import_module(f"zoo.{module.name}"), "CASES", {}).items()
}

# One cell of each kind: complex numbers in a linear recurrence, matrices and a stabilizer in the carry, two nonlinear
# loops with a product between them.
FEW = ("LRU", "MLSTM", "Stack")
# And one loop, images, an associative scan, keys drawn within the step, sums over features.
SEVERAL = ("LSTM", *FEW, "ConvGRU", "MinGRU", "Zoneout", "LayerNormGRU")
