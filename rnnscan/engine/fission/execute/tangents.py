"""The tangents of a scan: a linear map, which forward mode evaluates and reverse mode transposes."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.fission.execute.backward import Backward
from rnnscan.engine.fission.execute.forward import Saved
from rnnscan.engine.fission.execute.linear_call import LinearMap, linear_call
from rnnscan.engine.fission.execute.sharded_rows import ShardedRows
from rnnscan.engine.fission.plan import ScanPlan
from rnnscan.engine.fission.program import evaluate, read


def tangents_of_scan(
    plan: ScanPlan,
    saved: Saved,
    results: Sequence[list[Any]],
    tangents: Sequence[Any],
    spread: Mapping[int, ShardedRows],
) -> tuple[list[Any], list[Any]]:
    """The tangents of the final carry and of ys.

    Args:
        plan: the plan of the scan.
        saved: the values that its forward pass keeps for the backward pass.
        results: the final carry and ys.
        tangents: the tangent of each leaf of constants, carry and xs, or a symbolic zero.
        spread: the rows, by constant whose tangent was spread over their parts.

    Returns:
        A tangent for each leaf of the results.
    """
    wanted = [not is_zero(leaf) and leaf.dtype != jax.dtypes.float0 for leaf in tangents]
    moving = [leaf for leaf, own in zip(tangents, wanted, strict=True) if own]
    residuals, structure = jax.tree.flatten(saved)
    leaves, results_structure = jax.tree.flatten(results)
    floats = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    count = len(leaves)

    # JAX caches both, so they must not hold `leaves` or another array of this trace.
    def apply(residuals: list[Any], tangents: list[Any]) -> list[Any]:
        moving = [index for index, own in enumerate(wanted) if own]
        pairs = zip(moving, tangents, strict=True)
        tangents = [spread[index].mean(leaf) if index in spread else leaf for index, leaf in pairs]
        return _push_forward(plan, jax.tree.unflatten(structure, residuals), wanted, tangents, floats)

    def transpose(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
        given: list[Any] = [None] * count
        for index, cotangent in zip(floats, cotangents, strict=True):
            given[index] = cotangent
        size = len(plan.step.carry)
        return Backward(plan, spread)(jax.tree.unflatten(structure, residuals), wanted, given[:size], given[size:])

    types = tuple(jax.typeof(leaves[index]) for index in floats)
    made = linear_call(LinearMap(apply, transpose, len(residuals), types), residuals, moving)
    # Integers and keys have no tangents.
    whole: list[Any] = [jax.custom_derivatives.SymbolicZero(jax.typeof(leaf).to_tangent_aval()) for leaf in leaves]
    for index, tangent in zip(floats, made, strict=True):
        whole[index] = tangent
    final, ys = jax.tree.unflatten(results_structure, whole)
    return final, ys


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is one of JAX's symbolic zeros."""
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _push_forward(
    plan: ScanPlan, saved: Saved, wanted: Sequence[bool], tangents: Sequence[Any], floats: Sequence[int]
) -> list[Any]:
    """Run the step and its derivative over time, with a plain scan."""
    flat = plan.step
    primals = [*saved.constants, *saved.initial, *saved.xs]
    moving = [index for index, own in enumerate(wanted) if own]

    def run(*some: Any) -> list[Any]:
        whole = dict(enumerate(primals)) | dict(zip(moving, some, strict=True))
        given = list(whole.values())
        constants, given = given[: len(flat.constants)], given[len(flat.constants) :]
        carry, xs = given[: len(flat.carry)], given[len(flat.carry) :]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            values = dict(zip([*flat.constants, *flat.carry, *flat.x], [*constants, *carry, *x], strict=True))
            evaluate(flat.program.equations, values)
            return [read(atom, values) for atom in flat.new_carry], [read(atom, values) for atom in flat.y]

        # Checkpointed, so that a gradient of these tangents keeps no more than the carries.
        step = jax.checkpoint(step, prevent_cse=False)
        final, ys = lax.scan(step, carry, xs, length=plan.length, reverse=plan.reverse, unroll=plan.unroll)
        results = [*final, *ys]
        return [results[index] for index in floats]

    return jax.jvp(run, [primals[index] for index in moving], list(tangents))[1]
