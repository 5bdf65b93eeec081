"""Lower a function to StableHLO for one platform, with the engine's choices for that platform."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from rnnscan._util.messages import listing
from rnnscan.engine.costs import heuristics
from rnnscan.export.common.effects import side_effects
from rnnscan.export.common.extras import import_extra
from rnnscan.export.common.specs import ArraySpec, spec_of
from rnnscan.export.custom_calls import foreign_calls
from rnnscan.export.liveness import arguments_read
from rnnscan.memory import never_differentiated


@dataclass(frozen=True)
class Program:
    """A function that was lowered for one platform.

    Attributes:
        serialized: the result of `jax.export.Exported.serialize`.
        outputs: the specs of its result, in the structure of the result.
        reads: whether it reads each leaf of its arguments.
    """

    serialized: bytes
    outputs: Any
    reads: list[bool]


def lower(function: Callable[..., Any], params: Any, arguments: Sequence[Any], platform: str) -> Program:
    """Lower `function(params, *arguments)` as a function of leaves.

    The structure of the result is returned here and not in the program, so that a class of the user's is never needed
    to read it. A gradient is not lowered.

    Args:
        function: the function.
        params: the types of its parameters, any pytree.
        arguments: the types of its other arguments.
        platform: "cpu", "cuda", "tpu" or "rocm".

    Raises:
        ValueError: if the function has side effects, or calls a library that a loaded program may not call.
    """
    leaves, structure = jax.tree.flatten((params, *arguments))
    returned: list[Any] = []

    def of_leaves(*leaves: Any) -> list[Any]:
        outputs, tree = jax.tree.flatten(function(*jax.tree.unflatten(structure, leaves)))
        returned.append(tree)
        return outputs

    chosen = heuristics.using(heuristics.for_platform(platform))
    with chosen, never_differentiated(), _without_source_lines():
        jitted = jax.jit(of_leaves)
        jaxpr = jitted.trace(*leaves).jaxpr
        effects = side_effects(jaxpr)
        if effects:
            raise ValueError(
                "export.save: the function must have no side effects, because a loaded program runs no Python; got "
                f"{listing(effects)}. Remove callbacks and prints. Call while_net with on_limit='stop'."
            )
        exported = jax.export.export(jitted, platforms=[platform])(*leaves)
    foreign = foreign_calls(exported.mlir_module_serialized)
    if foreign:
        raise ValueError(
            "export.save: the function must have no custom calls but those that `load` allows; got "
            f"{listing(foreign)} on {platform!r}. Use the function's form in plain JAX."
        )
    outputs = jax.tree.unflatten(returned[-1], [spec_of(aval) for aval in exported.out_avals])
    import_extra("flatbuffers")
    return Program(bytes(exported.serialize()), outputs, arguments_read(jaxpr.jaxpr))


def read(serialized: bytes, inputs: list[ArraySpec], outputs: list[ArraySpec], platform: str) -> Callable[..., Any]:
    """Read a program, checked against its specs.

    Args:
        serialized: the bytes of `Program`. Their hash must have been checked.
        inputs: the specs of its arguments.
        outputs: the specs of its results.
        platform: the platform that it must be lowered for.

    Raises:
        ValueError: if it is not such a program.
    """
    import_extra("flatbuffers")
    try:
        exported = jax.export.deserialize(bytearray(serialized))
        signature = [[spec_of(aval) for aval in avals] for avals in (exported.in_avals, exported.out_avals)]
        has_effects = exported.ordered_effects or exported.unordered_effects
        foreign = foreign_calls(exported.mlir_module_serialized)
    except Exception as error:  # flatbuffers checks nothing itself, so any error may come.
        raise ValueError(f"it is not a program of jax.export that jax {jax.__version__} reads ({error!r})") from error
    if signature != [inputs, outputs] or platform not in exported.platforms:
        raise ValueError(
            f"it is a program for {exported.platforms} with other inputs or outputs than the manifest says"
        )
    if foreign:
        raise ValueError(
            f"a program calls {listing(foreign)}, and only targets that JAX guarantees are allowed in custom calls"
        )
    if has_effects or exported.disabled_safety_checks:
        raise ValueError("a program has side effects")
    return jax.jit(exported.call)


@contextmanager
def _without_source_lines() -> Iterator[None]:
    """Leave out the paths and lines of the source, which locations of operations would show to whoever loads it."""
    config: Any = jax.config
    limit = config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", limit)
