"""Side effects: what a program does besides computing, and a loaded one cannot."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


# Host callbacks have one of these in the target of their custom call.
_CALLBACKS = b"python_cpu_callback", b"python_gpu_callback", b"python_callback"


def side_effects(jaxpr: Any) -> list[str]:
    """The host callbacks and other effects of a jaxpr, by the names of their primitives."""
    found = {name for name in _primitives(jaxpr.jaxpr) if "callback" in name or name == "debug_print"}
    return sorted(found or {str(effect) for effect in jaxpr.effects})


def calls_python(exported: Any) -> bool:
    """Whether a lowered program calls Python. The names of custom calls are plain text in the serialized module."""
    return any(name in exported.mlir_module_serialized for name in _CALLBACKS)


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for param in equation.params.values():
            for value in param if isinstance(param, tuple | list) else (param,):
                if isinstance(value, ClosedJaxpr | Jaxpr):
                    yield from _primitives(value.jaxpr if isinstance(value, ClosedJaxpr) else value)
