"""The values that a plan keeps between the passes, with their bytes.

The tests compare them with the residuals of `jax.vjp` for every cell of the library.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rnnscan.engine.analysis.flat_step import FlatStep
from rnnscan.engine.analysis.restore import reading_kept
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.plan.residuals import Residual, stacks
from rnnscan.ir.dataflow import depending, needed
from rnnscan.ir.leaves import places, replace_at, split_list
from rnnscan.ir.program import Atom, Equation, Value, inputs_of, values_of
from rnnscan.ir.trace import trace


def kept_values(plan: ExecutionPlan) -> tuple[Residual, ...] | None:
    """The values that a plan keeps. Call it inside the trace of the plan's arguments.

    Returns:
        The values; None if one step does not determine them: with plain autodiff, if padding holds outputs after the
        scan, or if a kept name is inside a vmap or a branch.
    """
    call, memory, fission = plan.call, plan.memory, plan.route.engine == "fission"
    if memory is None or (call.valid is not None and call.padding == "hold"):
        return None
    step, constants = plan.step, plan.constants
    if not any(step.active(_differentiated(step, constants))):
        return ()
    segmented = step
    if not fission:
        step, segmented = _with_whole_carry(step), _with_whole_carry(call.flat)
        constants = constants[: len(step.constants)]
    values: list[Residual] = []
    for number, sub_scan in enumerate(memory.sub_scans(call.length)):
        window = plan.states.window(sub_scan.steps) if fission else None
        if sub_scan.segment:
            read = _Read.among(step, {*step.inputs}) if fission else _read_in_segment(segmented, constants)
            kept = _by_segments(segmented, constants, read, sub_scan.steps, sub_scan.segment[0])
        elif window is not None:
            kept = _by_segments(step, constants, _Read.among(step, {*step.inputs}), sub_scan.steps, window)
            kept = chain(kept, _named(step, range(len(step.kept_labels)), sub_scan.steps, -(-sub_scan.steps // window)))
        elif fission:  # The fields of `rnnscan.engine.run.forward.Saved`.
            scan = plan.scan(sub_scan.steps)
            kept = chain(_constants(constants), scan.residuals.rows(scan.step))
        elif call.flat.can_keep(plan.kept_names, call.names):
            kept = _by_lax(step, constants, sub_scan.steps)
        else:
            return None
        values += kept if not number else _of_later_scan(kept)
    return tuple(
        replace(one, of=step.changing[one.of]) if one.source in ("carry", "initial carry") else one for one in values
    )


def _with_whole_carry(step: FlatStep) -> FlatStep:
    """The step with all leaves in its carry, as in `lax.scan`."""
    program, size = step.program, len(step.constants) - len(step.unchanged)
    unchanged = program.invariant[size:]
    program = replace(
        program,
        invariant=program.invariant[:size],
        carry=(*program.carry, *unchanged),
        new_carry=(*program.new_carry, *unchanged),
    )
    return replace(step, program=program, changing=(*step.changing, *step.unchanged), unchanged=())


def _of_later_scan(kept: Iterable[Residual]) -> Iterator[Residual]:
    """The values that a later sub-scan adds: the first one keeps the constants."""
    for one in kept:
        if one.source == "initial carry":
            yield replace(one, source="carry")
        elif one.source != "constant":
            yield one


class _Read(NamedTuple):
    """Positions of the constants, carry leaves, inputs and kept values that a backward pass reads."""

    constants: Sequence[int]
    carry: Sequence[int]
    x: Sequence[int]
    kept: Sequence[int]

    @staticmethod
    def among(step: FlatStep, values: Collection[Atom]) -> "_Read":
        groups = (step.constants, step.carry, step.x, step.kept)
        return _Read(*([index for index, value in enumerate(group) if value in values] for group in groups))


def _by_lax(step: FlatStep, constants: Sequence[Any], length: int) -> Iterator[Residual]:
    """The values that the vjp of each step reads. JAX drops the others."""
    read = _Read.among(step, _read_by_vjp(step, constants))
    yield from _constants(constants[index] for index in read.constants)
    yield from stacks("carry", step.carry, read.carry, length)
    yield from stacks("x", step.x, read.x, length)
    # JAX moves those that are the same at every step out of the loop.
    yield from _named(step, read.kept, length, 1)


def _by_segments(
    step: FlatStep, constants: Sequence[Any], read: _Read, length: int, segment: int
) -> Iterator[Residual]:
    """The values from which the longest segments run again."""
    count = max(1, -(-length // segment))
    yield from _constants(constants[index] for index in read.constants)
    yield from stacks("carry", step.carry, read.carry, count)
    yield from stacks("x", step.x, read.x, length)


def _read_in_segment(step: FlatStep, constants: Sequence[Any]) -> _Read:
    """The values that a segment's second run reads, to compute the carry for its later steps too."""
    equations = [equation for equation in step.program.equations if not {*equation.outputs} <= {*step.kept}]
    values = _read_by_vjp(step, constants)
    while True:
        read = _Read.among(step, values)
        new_carry = [step.new_carry[index] for index in read.carry]
        more = _read_for(new_carry, equations)
        if more <= values:
            return read
        values |= more


def _differentiated(step: FlatStep, constants: Sequence[Any]) -> list[bool]:
    """For each constant, carry leaf and input whether it may have a tangent. A closed-over array has none."""
    is_traced = [isinstance(leaf, jax.core.Tracer) for leaf in constants]
    is_traced += [True] * (len(step.inputs) - len(is_traced))
    pairs = zip(step.inputs, is_traced, strict=True)
    return [traced and bool(jnp.issubdtype(value.dtype, jnp.inexact)) for value, traced in pairs]


def _read_by_vjp(step: FlatStep, constants: Sequence[Any]) -> set[Value]:
    """The constants, carry leaves, inputs and kept values that a step's residuals are computed from."""
    operands, sizes = [*step.inputs, *step.kept], [len(step.constants), len(step.carry), len(step.x)]
    floats, pairs = places(_differentiated(step, constants)), 0

    def residuals(*leaves: Any) -> list[Any]:
        nonlocal pairs

        def differentiable(*some: Any) -> tuple[list[Any], Any]:
            constants, carry, x, kept = split_list(replace_at(leaves, floats, some), sizes)
            new_carry, y, computed_and_kept = step.differentiable(
                constants, carry, x, dict(zip(step.kept, kept, strict=True))
            )
            results = [leaf for leaf in [*new_carry, *y] if jnp.issubdtype(leaf.dtype, jnp.inexact)]
            return results, [*chain(*computed_and_kept)]

        some = (leaves[index] for index in floats)
        _, pull_back, computed_and_kept = jax.vjp(differentiable, *some, has_aux=True)
        pairs = len(computed_and_kept) // 2
        return [*jax.tree.leaves(pull_back), *computed_and_kept]

    program = trace(residuals, *(jax.ShapeDtypeStruct(value.shape, value.dtype) for value in operands))
    program = reading_kept(program, pairs)
    read = _read_for(program.outputs, program.equations)
    return {*values_of(atom for atom, known in zip(operands, program.known, strict=True) if known in read)}


def _read_for(outputs: Sequence[Atom], equations: Sequence[Equation]) -> set[Value]:
    return {*values_of(outputs), *inputs_of(needed(equations, outputs))}


def _constants(constants: Iterable[Any]) -> Iterator[Residual]:
    for constant in constants:
        yield Residual("constant", constant, 1, prod(jnp.shape(constant)) * int(jnp.result_type(constant).itemsize))


def _named(step: FlatStep, which: Iterable[int], length: int, times: int) -> Iterator[Residual]:
    """The values with names. Those that are the same at every step are kept so many times."""
    varying = depending(step.program.equations, [*step.carry, *step.x])
    for index in which:
        for kept in stacks("name", step.kept, [index], length if step.kept[index] in varying else times):
            yield replace(kept, of=step.kept_labels[index])
