"""How the equations of the engine's primitives run: eagerly, lowered for each platform, and under `checkify`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import mlir

from rnnscan.engine.analysis.leaves import as_arrays
from rnnscan.engine.loops.lowering import check_within, lower_jaxpr
from rnnscan.engine.loops.unused_results import without_dead_code
from rnnscan.engine.primitive.scan import ScanPrimitive
from rnnscan.ir.invalid_values import run_checked_jaxpr


def lowered_for_each_platform(primitive: ScanPrimitive, run: Callable[..., Any]) -> None:
    """Run a primitive's equations by a function.

    Args:
        primitive: the primitive.
        run: `(*operands, platform=None, **parameters) -> results`. What it traces is not differentiated.
    """

    def program(types: Sequence[Any], params: dict[str, Any], platform: str | None = None) -> core.ClosedJaxpr:
        return without_dead_code(jax.make_jaxpr(partial(run, platform=platform, **params))(*types))

    def evaluate(*operands: Any, **params: Any) -> list[Any]:
        arrays = as_arrays(operands)
        return run_checked_jaxpr(program([*map(jax.typeof, arrays)], params), arrays)

    def lower(platform: str | None, context: Any, *operands: Any, **params: Any) -> Any:
        return lower_jaxpr(context, program(context.avals_in, params, platform), operands)

    primitive.program = program
    primitive.def_impl(evaluate)
    mlir.register_lowering(primitive, partial(lower, None))
    for platform in ("cpu", "cuda", "rocm", "tpu"):
        mlir.register_lowering(primitive, partial(lower, platform), platform=platform)
    check_within(primitive, program)
