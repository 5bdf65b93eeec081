"""The tangents of a scan: a linear map, which forward mode evaluates and reverse mode transposes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.leaves import replace_at, split_list
from rnnscan.engine.loops.linear_tangents import have_tangents, linear_tangents
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.backward import Backward
from rnnscan.engine.run.copies import Copies
from rnnscan.engine.run.forward import Saved, run_along


def tangents_of_scan(
    plan: ScanPlan,
    saved: Saved,
    results: Sequence[list[Any]],
    tangents: Sequence[Any],
    copied: Copies,
) -> tuple[list[Any], list[Any]]:
    """The tangents of the final carry and of ys.

    Args:
        plan: the plan of the scan.
        saved: the values that its forward pass keeps for the backward pass.
        results: the final carry and ys.
        tangents: the tangent of each leaf of constants, carry and xs, or a symbolic zero.
        copied: how constants were copied whose tangents are those of their copies.

    Returns:
        A tangent for each leaf of the results.
    """
    moving = plan.step.moving(have_tangents(tangents))
    moving_results = [*moving.carry, *moving.ys]

    # JAX caches both, so they must not hold an array of this trace.
    def jvp_rule(saved: Saved, wanted: list[bool], tangents: list[Any]) -> list[Any]:
        moving = [index for index, is_wanted in enumerate(wanted) if is_wanted]
        pairs = zip(moving, tangents, strict=True)
        tangents = [copied[index].undone(leaf) if index in copied else leaf for index, leaf in pairs]
        scan = partial(lax.scan, length=plan.length, reverse=plan.reverse, unroll=plan.unroll)
        run = step_by_step(plan.step, scan) if plan.parallel is None else partial(run_along, plan, saved)
        return scan_jvp(run, saved.arguments, wanted, tangents, moving_results)

    def vjp_rule(saved: Saved, wanted: list[bool], cotangents: list[Any]) -> list[Any]:
        size = len(plan.step.carry)
        spread = [index for index, copy in copied.items() if copy.rows is not None]
        return Backward(plan, spread, copied)(saved, wanted, cotangents[:size], cotangents[size:])

    def with_cotangents(wanted: list[bool], results: list[bool]) -> list[bool]:
        return plan.step.with_cotangents(wanted, *split_list(results, [len(plan.step.carry)]))

    final, ys = linear_tangents(saved, list(results), tangents, jvp_rule, vjp_rule, moving_results, with_cotangents)
    return final, ys


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
