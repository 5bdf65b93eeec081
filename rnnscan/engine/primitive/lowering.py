"""How the equations of the engine's scans run: by a program for each platform."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend import core

from rnnscan._util.varying import in_mesh_of
from rnnscan.engine.loops.lowering import run_by_program
from rnnscan.engine.loops.unused_results import without_dead_code
from rnnscan.engine.primitive.scan import ScanPrimitive


def lowered_for_each_platform(primitive: ScanPrimitive, run: Callable[..., Any]) -> None:
    """Run a primitive's equations by a function.

    Args:
        primitive: the primitive.
        run: `(*operands, platform=None, **parameters) -> results`. What it traces is not differentiated.
    """

    def program(types: Sequence[Any], params: dict[str, Any], platform: str | None = None) -> core.ClosedJaxpr:
        with in_mesh_of(types):
            return without_dead_code(jax.make_jaxpr(partial(run, platform=platform, **params))(*types))

    primitive.program = program
    run_by_program(primitive, program, ("cpu", "cuda", "rocm", "tpu"))
