"""The plan of a scan under `jax.vmap`: that of the step on all rows, and not that of one row."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.extend import core

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.leaves import split_list
from rnnscan.engine.analysis.probe import mapped_results
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import evaluate, read
from rnnscan.ir.trace import trace


class BatchedPlan(NamedTuple):
    """A plan of all rows.

    Attributes:
        plan: the plan. Mapped leaves have the rows as their first axis in each step.
        carry: which leaves of the carry are mapped in some step.
        ys: which leaves of y are mapped.
    """

    plan: ScanPlan
    carry: list[bool]
    ys: list[bool]


def batched_plan(plan: ScanPlan, axis: Any, is_mapped: Sequence[bool]) -> BatchedPlan:
    """The plan of a scan under `jax.vmap`. As in `lax.scan`, leaves that nothing mapped reaches have no rows.

    Args:
        plan: the plan of one row.
        axis: the batch axis, as JAX gives it to a rule of `fancy_primitive_batchers`.
        is_mapped: for each leaf of constants, carry and xs whether it is mapped.
    """
    step = plan.step
    inputs, first, size = [*step.constants, *step.carry, *step.x], len(step.constants), len(step.carry)
    # Parts of the carry and values without names are chosen again, for all rows.
    outputs = [*step.new_carry, *step.y, *step.kept[: len(step.kept_labels)]]
    equations = needed(step.program.equations, outputs)

    def run(*leaves: Any) -> list[Any]:
        values = dict(zip(inputs, leaves, strict=True))
        evaluate(equations, values)
        return [read(atom, values) for atom in outputs]

    vmap = partial(jax.vmap, axis_size=axis.size, axis_name=axis.name, spmd_axis_name=axis.spmd_name)
    flags, is_settled = list(is_mapped), False
    while not is_settled:
        types = [
            _with_rows(value.aval, axis) if has_rows else value.aval
            for value, has_rows in zip(inputs, flags, strict=True)
        ]
        in_axes = tuple(0 if has_rows else None for has_rows in flags)
        reached = mapped_results(partial(vmap, in_axes=in_axes), run, types)
        before = flags[first : first + size]
        carry = [old or new for old, new in zip(before, reached[:size], strict=True)]
        is_settled = carry == before
        flags[first : first + size] = carry
    mapped = [*carry, *reached[size:]]
    out_axes = [0 if has_rows else None for has_rows in mapped]
    program = trace(vmap(run, in_axes=in_axes, out_axes=out_axes), *types)
    constants, old_carry, x = split_list(program.known, [first, size])
    new_carry, stacked = split_list(program.stacked, [size])
    program = replace(
        program,
        invariant=tuple(constants),
        carry=tuple(old_carry),
        known=tuple(x),
        new_carry=tuple(new_carry),
        stacked=tuple(stacked),
    )
    batched = FlatStep(program, step.y_size, tuple(range(size)), (), {}, kept_labels=step.kept_labels)
    ys = mapped[size : size + step.y_size]
    return BatchedPlan(replace(plan, step=batched.keeping_parts(), cheap={}), carry, ys)


def _with_rows(aval: Any, axis: Any) -> Any:
    return core.unmapped_aval(axis.size, 0, aval, axis.explicit_mesh_axis)
