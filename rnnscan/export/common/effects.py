"""Side effects: what a program does besides computing, and a loaded one cannot."""

from typing import Any

from rnnscan._util import effects
from rnnscan.ir.jaxprs import all_equations


def side_effects(jaxpr: Any) -> list[str]:
    """The host callbacks and other effects of a jaxpr, by the names of their primitives."""
    names = {equation.primitive.name for equation in all_equations(jaxpr.jaxpr)}
    callbacks = {name for name in names if "callback" in name or name == "debug_print"}
    return sorted(callbacks or {str(effect) for effect in effects.ordered(jaxpr.effects)})
