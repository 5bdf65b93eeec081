"""The tangents of a scan: a linear map, which forward mode evaluates and reverse mode transposes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.leaves import replace_at, split_list


def scan_jvp(
    run: Callable[..., tuple[list[Any], list[Any]]],
    arguments: Sequence[list[Any]],
    wanted: Sequence[bool],
    tangents: Sequence[Any],
    moving_results: Sequence[bool] | None = None,
) -> list[Any]:
    """The tangents of the results of a scan.

    Args:
        run: the scan, `(constants, carry, xs) -> (carry, ys)`, with derivatives.
        arguments: constants, carry and xs.
        wanted: for each leaf of them whether it has a tangent.
        tangents: these tangents.
        moving_results: for each leaf of the results whether it has a tangent; None: all floats have.
    """
    primals = [leaf for group in arguments for leaf in group]
    moving = [index for index, is_wanted in enumerate(wanted) if is_wanted]
    sizes = [len(group) for group in arguments[:2]]

    def results(*moving_primals: Any) -> list[Any]:
        final, ys = run(*split_list(replace_at(primals, moving, moving_primals), sizes))
        leaves = [*final, *ys]
        flags = map(is_float, leaves) if moving_results is None else moving_results
        return [leaf for leaf, moves in zip(leaves, flags, strict=True) if moves]

    return jax.jvp(results, [primals[index] for index in moving], list(tangents))[1]


def step_by_step(
    flat: FlatStep, scan: Callable[..., Any], *, checkpointed: bool = True
) -> Callable[..., tuple[list[Any], list[Any]]]:
    """A step under a plain scan, as a function of constants, carry and xs.

    Args:
        flat: the step.
        scan: `(step, carry, xs) -> (carry, ys)`, a scan with derivatives.
        checkpointed: whether a gradient keeps no more than the carries. With `JAX_REMAT3=1` JAX cannot transpose such a
            step.
    """

    def run(constants: list[Any], carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            return flat.run(constants, carry, x)

        final, ys = scan(jax.checkpoint(step, prevent_cse=False) if checkpointed else step, carry, xs)
        return final, ys

    return run
