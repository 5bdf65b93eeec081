"""Run a plan by the fission engine.

The forward pass (run/forward.py) keeps the values that the rule of memory chooses. The backward pass (run/backward.py)
goes through the chunks from the end: it recomputes the other values, batched over a chunk, a small loop carries the
cotangent of the carry, and the gradients of the values that all steps share are summed after it, by products that
contract over the steps.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.step_wrappers import type_of_step
from rnnscan._util.varying import varying
from rnnscan.engine.analysis.effects_of_rules import has_jvp_rules
from rnnscan.engine.analysis.leaves import replace_at, split_list
from rnnscan.engine.loops.flat_function import is_zero, jvp
from rnnscan.engine.loops.own_derivative import are_unknown, differentiate_as, with_derivative
from rnnscan.engine.loops.saving import FlatSaving, Saving
from rnnscan.engine.loops.sharded_rows import sharded_rows
from rnnscan.engine.plan.batched_plan import batched_plan
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.engine.run.copies import Copies, Copy, narrow_constants
from rnnscan.engine.run.forward import Saved, run_and_count, run_and_save, run_forward
from rnnscan.engine.run.matrix_windows import run_windows
from rnnscan.engine.run.segments import run_sub_scans
from rnnscan.engine.run.tangents import step_by_step, tangents_of_scan
from rnnscan.engine.units.mesh import unit_mesh
from rnnscan.engine.units.shard_units import UnitCell
from rnnscan.ir.program import Equation


# (constants, carry, xs) -> (carry, ys), all lists of leaves
Run: TypeAlias = Callable[[Any, Any, Any], tuple[list[Any], list[Any]]]


def run(plan: ExecutionPlan) -> tuple[Any, Any]:
    """Run a plan under the rule of memory.

    Returns:
        The final carry and the stacked y, as `lax.scan`.
    """
    call, memory, constants = plan.call, plan.memory, plan.constants
    assert memory is not None
    leaves, structure = jax.tree.flatten(call.carry)
    xs = jax.tree.leaves(call.xs)
    rows = sharded_rows([*leaves, *map(type_of_step, xs)], constants)
    if rows is not None:
        constants = [rows.on_mesh(constant) for constant in constants]
    copied: Copies = {}
    if memory.segment is not None and plan.state_chunk is None:
        # Segments run in a loop, and each has gradients of the constants: their total is rounded after all segments,
        # and taken over all rows.
        copied = narrow_constants(constants)
        if rows is not None:
            summed = rows.summed_for(constants, plan.step.constants_over_units)
            copied |= {index: Copy(constants[index].dtype, rows) for index in summed}
    copies = [copy.of(constants[index]) for index, copy in copied.items()]

    def run_steps(carry: list[Any], xs: list[Any], length: Any) -> tuple[Any, Any]:
        windows = plan.windows(length)
        if memory.segment is not None and isinstance(call.cell, UnitCell):
            # Else XLA may shard the features of a segment, and gather them at each step.
            xs = [call.cell.mesh.gather_features(leaf) for leaf in xs]
        if windows is None:
            scan = plan.scan_to_run(length)
            final, ys = _differentiable(scan, copied)(constants, copies, scan.axis_order.of(carry), xs)
            return scan.axis_order.undone(final), ys
        in_windows = partial(run_windows, plan, windows, _run_loop)
        if plan.loops_forward:
            return differentiate_as(in_windows, partial(run_forward, plan.scan(length)))(constants, carry, xs)
        return in_windows(constants, carry, xs)

    changing = [leaves[index] for index in plan.step.changing]
    sub_scans = memory.sub_scans(call.length)
    final, ys = run_sub_scans(run_steps, changing, xs, sub_scans=sub_scans, reverse=call.reverse)
    whole = {**dict(enumerate(leaves)), **dict(zip(plan.step.changing, final, strict=True))}
    return jax.tree.unflatten(structure, whole.values()), jax.tree.unflatten(jax.tree.structure(call.y), ys)


def run_counting(plan: ExecutionPlan) -> list[Any]:
    """Run a plan, and return the work of Newton's method as `run_and_count` does, in stacks of all steps."""
    call, memory, constants = plan.call, plan.memory, plan.constants
    assert memory is not None
    leaves, xs = jax.tree.leaves(call.carry), jax.tree.leaves(call.xs)

    def run_steps(carry: list[Any], xs: list[Any], length: Any) -> tuple[list[Any], list[Any]]:
        windows = plan.windows(length)
        if windows is not None:
            return run_windows(plan, windows, run_and_count, constants, carry, xs)
        final, ys, counts = run_and_count(plan.scan(length), constants, carry, xs)
        return final, [*ys, *counts]

    changing = [leaves[index] for index in plan.step.changing]
    sub_scans = memory.sub_scans(call.length)
    _, stacks = run_sub_scans(run_steps, changing, xs, sub_scans=sub_scans, reverse=call.reverse)
    counts: list[Any] = stacks[plan.step.y_size :]
    return counts


def _loses_rules(equations: Iterable[Equation]) -> bool:
    """Whether partial evaluation takes the forward pass of a step apart and drops the rule of a `jax.custom_jvp` in it.

    A derivative around it would be that of the function: JAX before 0.12 expects none. It cannot look into a call.
    """
    return jax.__version_info__ < (0, 12) and has_jvp_rules(equations)


def _run_loop(plan: ScanPlan, constants: Any, carry: Any, xs: Any) -> tuple[list[Any], list[Any], list[Any]]:
    final, ys = _differentiable(plan, {})(constants, [], carry, xs)
    return final, ys, []


def _differentiable(plan: ScanPlan, copied: Copies) -> Any:
    """`(constants, copies, carry, xs) -> (carry, ys)`, all lists of leaves, with the derivatives of this engine.

    Reverse mode transposes the linear map of the tangents, which runs the engine's backward pass. Forward mode
    differentiates the engine's forward pass; where it linearizes first, it evaluates that map by a plain scan. A
    constant that was copied has its derivative through its copy, which is not read.
    """

    def scan(constants: Any, copies: Any, carry: Any, xs: Any) -> tuple[list[Any], list[Any]]:
        return run_forward(plan, constants, carry, xs)

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        constants, _, *carry_and_xs = primals
        leaves = tangents_of_leaves(tangents)
        saving = plan.for_derivatives
        in_one_call = are_unknown(leaves) or _loses_rules(saving.step.program.equations)
        *results, saved = run_and_save(saving, constants, *carry_and_xs, in_one_call=in_one_call)
        return tuple(results), tangents_of_scan(saving, saved, results, leaves, copied)

    def tangents_of_leaves(tangents: Any) -> list[Any]:
        of_constants, of_copies, *of_carry_and_xs = tangents
        of_all_constants = replace_at(of_constants, [*copied], of_copies)
        return jax.tree.leaves([of_all_constants, of_carry_and_xs], is_leaf=is_zero)

    def save(constants: Any, copies: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        final, ys, saved = run_and_save(plan.for_derivatives, constants, carry, xs)
        return (final, ys), saved.residuals

    def tangents_from(arguments: Any, results: Any, residuals: Any, tangents: Any) -> Any:
        constants, _, carry, xs = arguments
        saved = Saved.of(plan.for_derivatives, (constants, carry, xs), results, residuals)
        return tangents_of_scan(plan.for_derivatives, saved, results, tangents_of_leaves(tangents), copied)

    def reads_results() -> list[bool]:
        step, residuals = plan.for_derivatives.step, plan.for_derivatives.residuals
        of_carry = [index in residuals.final for index in range(len(step.carry))]
        return [*of_carry, *(index in residuals.repeated_ys for index in range(step.y_size))]

    def in_forward_mode(primals: Any, tangents: Any) -> tuple[Any, Any]:
        constants, _, *carry_and_xs = primals
        of_constants, of_copies, *of_carry_and_xs = tangents
        pairs = zip(of_copies, copied.values(), strict=True)
        undone = [leaf if is_zero(leaf) else copy.undone(leaf) for leaf, copy in pairs]
        return jvp(
            scan, (constants, [], *carry_and_xs), (replace_at(of_constants, [*copied], undone), [], *of_carry_and_xs)
        )

    def moving(flags: list[bool]) -> list[bool]:
        of_constants, of_copies, flags_of_rest = split_list(flags, [len(plan.step.constants), len(copied)])
        leaves = plan.step.moving([*replace_at(of_constants, [*copied], of_copies), *flags_of_rest])
        return [*leaves.carry, *leaves.ys]

    def plain(constants: Any, copies: Any, carry: Any, xs: Any) -> tuple[list[Any], list[Any]]:
        every_step = partial(lax.scan, length=plan.length, reverse=plan.reverse)
        return step_by_step(plan.step, every_step, checkpointed=False)(constants, carry, xs)

    def batched(axis: Any, axes: Any, arguments: Any) -> tuple[Any, list[int | None]] | None:
        return _run_on_rows(plan, copied, axis, axes, arguments)

    size = len(plan.step.carry)
    batch_axis = lambda index: 0 if index < size else 1  # noqa: E731
    # Newton's method solves for the results first, and then for the tangents.
    together = None if plan.parallel is not None else (in_forward_mode, moving)
    by_rows = any(copy.rows is not None for copy in copied.values())
    two_parts = None if by_rows else partial(FlatSaving, Saving(save, tangents_from, reads_results))
    return with_derivative(
        scan,
        differentiate,
        reference=plain,
        batch_axis=batch_axis,
        batched=batched,
        together=together,
        saving=two_parts,
    )


def _run_on_rows(
    plan: ScanPlan, copied: Copies, axis: Any, axes: Any, arguments: Any
) -> tuple[Any, list[int | None]] | None:
    """Run a scan under `jax.vmap` by the plan of all rows.

    Newton's method and scans over a mesh keep the plan of one row.

    Returns:
        The final carry and ys, and the axes of the rows in them; None if the plan of one row runs.
    """
    constants, copies, carry, xs = arguments
    on_mesh = sharded_rows([*carry, *map(type_of_step, xs)], constants) is not None or unit_mesh([*constants, *carry])
    if plan.parallel is not None or on_mesh or any(varying(jax.typeof(leaf)) for leaf in [*constants, *carry, *xs]):
        return None
    axes_of_constants, axes_of_copies, axes_of_carry, axes_of_xs = axes
    flags = [row_axis is not None for group in (axes_of_constants, axes_of_carry, axes_of_xs) for row_axis in group]
    rows = batched_plan(plan, axis, flags)

    def moved(leaf: Any, row_axis: int | None, place: int, *, is_mapped: bool) -> Any:
        if row_axis is not None:
            return jnp.moveaxis(leaf, row_axis, place)
        return jnp.broadcast_to(leaf, (axis.size, *leaf.shape)) if is_mapped else leaf

    pairs = zip([*constants, *copies], [*axes_of_constants, *axes_of_copies], strict=True)
    constants, copies = split_list(
        [moved(leaf, row_axis, 0, is_mapped=False) for leaf, row_axis in pairs], [len(constants)]
    )
    triples = zip(carry, axes_of_carry, rows.carry, strict=True)
    carry = [moved(leaf, row_axis, 0, is_mapped=is_mapped) for leaf, row_axis, is_mapped in triples]
    xs = [moved(leaf, row_axis, 1, is_mapped=False) for leaf, row_axis in zip(xs, axes_of_xs, strict=True)]
    results = _differentiable(rows.plan, copied)(constants, copies, carry, xs)
    return results, [
        *(0 if has_rows else None for has_rows in rows.carry),
        *(1 if has_rows else None for has_rows in rows.ys),
    ]
