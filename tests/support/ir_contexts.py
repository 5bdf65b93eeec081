"""What a lowered program is made in, taken again for the next ones, as jax 0.12 does.

jax 0.10 makes a new context of MLIR for each program, and loads all its dialects into it. That is 10 ms of processor
time for an addition, and a sixth of what `make test` takes.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
from jax._src.interpreters import mlir  # Private, because JAX has no option for it. For tests alone.


# What is interned stays in a context, so each is for some programs. jax 0.12 takes 10.
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
