"""The programs of an export: the function and its steps for each platform, with the parameters that they read."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rnnscan.export.lower import Program, lower
from rnnscan.export.streaming import Steps


class Lowered(NamedTuple):
    """The programs of an export.

    Attributes:
        programs: by platform, then by name: "predict", and "init" and "step" of a stream.
        used: the numbers of the parameters' leaves that any of them reads. These are their first arguments.
    """

    programs: dict[str, dict[str, Program]]
    used: list[int]


def lower_all(
    called: Callable[..., Any], steps: Steps | None, params: Any, inputs: list[Any], platforms: Sequence[str]
) -> Lowered:
    """Lower a function and its steps for each platform, without parameters that no program reads.

    Args:
        called: the function, of `params` and the inputs.
        steps: the functions of its stream, or None.
        params: the types of the parameters.
        inputs: the types of the inputs.
        platforms: the platforms.
    """
    leaves, structure = jax.tree.flatten(params)

    def lower_with(used: list[int]) -> dict[str, dict[str, Program]]:
        def fill(used_leaves: list[Any]) -> Any:
            filled = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
            for number, leaf in zip(used, used_leaves, strict=True):
                filled[number] = leaf
            return jax.tree.unflatten(structure, filled)

        functions: dict[str, tuple[Callable[..., Any], list[Any]]] = {"predict": (called, inputs)}
        if steps is not None:
            carry = jax.eval_shape(steps.init, params, steps.x)
            functions |= {"init": (steps.init, [steps.x]), "step": (steps.step, [carry, steps.x])}
        used_leaves = [leaves[number] for number in used]
        return {
            platform: {
                name: lower(
                    lambda used_leaves, *rest, of=of: of(fill(used_leaves), *rest), used_leaves, arguments, platform
                )
                for name, (of, arguments) in functions.items()
            }
            for platform in platforms
        }

    everything = list(range(len(leaves)))
    programs = lower_with(everything)
    reads = [program.reads for functions in programs.values() for program in functions.values()]
    used = [number for number in everything if any(read[number] for read in reads)]
    return Lowered(programs if used == everything else lower_with(used), used)
