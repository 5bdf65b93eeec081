"""Lowered programs share contexts of MLIR under jax 0.10, as they do under jax 0.11 and newer.

jax 0.10 makes a new context for each program, and loads all dialects into it. That takes 10 ms of processor time, even
for an addition, and a sixth of the time of `make test`.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src.interpreters import mlir  # Private, because JAX has no option for it. For tests alone.


# A context keeps all types and attributes of its programs, so it serves a limited number of them; in jax 0.12 it is 10.
_PROGRAMS = 50


def share() -> None:
    """Let the programs of a thread share contexts, where jax does not by itself."""
    if jax.__version_info__ < (0, 11):
        mlir.make_ir_context = _shared(mlir.make_ir_context)


def _shared(make: Callable[[], Any]) -> Callable[[], Any]:
    local = threading.local()

    def make_ir_context() -> Any:
        if getattr(local, "uses", 0) % _PROGRAMS == 0:
            local.context, local.uses = make(), 0
        local.uses += 1
        return local.context

    return make_ir_context
