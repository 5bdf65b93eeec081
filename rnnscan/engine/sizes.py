"""What the engines keep between the passes, part by part, told from one step before anything is run.

This is the rule of memory once more, in bytes. What is really kept are the residuals of `jax.vjp`; the tests compare
the two for every cell of the library.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan._step_wrappers import Step
from rnnscan.engine.fission.analysis.split import needed
from rnnscan.engine.fission.execute.forward import Plan
from rnnscan.engine.fission.flat_step import FlatStep, flatten_step
from rnnscan.engine.fission.run import why_not
from rnnscan.engine.fission.trace import Atom, Equation, Value, trace, values_of
from rnnscan.memory import Memory, kept_names
from rnnscan.naming import Names


Source: TypeAlias = Literal["constant", "initial carry", "carry", "y", "x", "name"]


@dataclass(frozen=True)
class Kept:
    """A value that is kept.

    Attributes:
        source: what it is: something that the step closes over, the carry before the first step, a stack of the carry
            before some or all steps, an output, an input, or a named value.
        of: which one: the constant itself, the number of the leaf, or the name.
        times: of how many steps it is kept; 1 for constants and the initial carry.
        nbytes: how large all of it is.
    """

    source: Source
    of: Any
    times: int
    nbytes: int


def kept_sizes(
    step: Step, carry: Any, xs: Any, *, length: int, memory: Memory, names: Names, engine: str
) -> tuple[Kept, ...] | None:
    """What is kept of a scan. To be called where the arguments of the scan are being traced.

    Args:
        step: `(carry, x) -> (carry, y)`, without side effects.
        carry: the initial carry, of the types that the step returns.
        xs: a pytree of leaves `(length, ...)`, or None.
        length: number of steps.
        memory: the memory choice.
        names: the names that the step uses.
        engine: as in `scan`.

    Returns:
        What is kept; None where the step does not tell, because a kept name stands within a vmap or a branch.
    """
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)
    flat, constants = flatten_step(step, carry, x, kept=kept_names(memory, names), names=names)
    fission = engine != "lax" and bool(length) and not why_not(flat, memory)
    if fission and flat.unchanged:
        return _with_unchanged(step, carry, xs, flat.unchanged, length=length, memory=memory, names=names)
    segmented = flat
    if memory.segment is not None and not fission:
        segmented, constants = flatten_step(step, carry, x, kept=frozenset(), names=names)
    found: list[Kept] = []
    for number, part in enumerate(memory.sub_scans(length)):
        if part.segment:
            read = _Read.everything(flat) if fission else _read_in_segment(segmented)
            kept = _by_segments(segmented, constants, read, part.steps, part.segment[0])
        elif fission:
            plan = Plan(flat, part.steps, reverse=False, unroll=1, chosen_chunk=memory.chunk)
            kept = _by_fission(plan, constants)
        elif flat.keeps_all:
            kept = _by_lax(flat, constants, part.steps)
        else:
            return None
        found += kept if not number else _of_later_part(kept)
    return tuple(found)


def _of_later_part(kept: Iterable[Kept]) -> Iterator[Kept]:
    """What a scan keeps that goes on where another has ended: its constants are those of the first."""
    for one in kept:
        if one.source == "initial carry":
            yield replace(one, source="carry")
        elif one.source != "constant":
            yield one


def _with_unchanged(
    step: Step, carry: Any, xs: Any, unchanged: Collection[int], **options: Any
) -> tuple[Kept, ...] | None:
    """What is kept where the step closes over what of its carry stays as it is, as the fission engine has it do."""
    leaves, structure = jax.tree.flatten(carry)
    changing = [index for index in range(len(leaves)) if index not in unchanged]

    def smaller_step(some: list[Any], x: Any) -> tuple[list[Any], Any]:
        whole = dict(enumerate(leaves)) | dict(zip(changing, some, strict=True))
        new_carry, y = step(jax.tree.unflatten(structure, whole.values()), x)
        return [jax.tree.leaves(new_carry)[index] for index in changing], y

    found = kept_sizes(smaller_step, [leaves[index] for index in changing], xs, engine="fission", **options)
    if found is None:
        return None
    in_carry = ("carry", "initial carry")
    return tuple(replace(kept, of=changing[kept.of]) if kept.source in in_carry else kept for kept in found)


def _by_fission(plan: Plan, constants: Sequence[Any]) -> Iterator[Kept]:
    """The fields of `rnnscan.engine.fission.execute.forward.Saved`."""
    flat, length = plan.flat, plan.length
    everywhere = [index for index in range(flat.carry_size) if index not in {*flat.repeats, *plan.following}]
    yield from _constants(constants)
    yield from _stacks("initial carry", flat.carry, range(flat.carry_size), 1)
    yield from _stacks("carry", flat.carry, everywhere, length)
    yield from _stacks("carry", flat.carry, plan.following, length // plan.chunk)
    yield from _stacks("y", flat.y, flat.repeated_ys, length)
    yield from _stacks("x", flat.x, range(len(flat.x)), length)
    yield from _named(flat, range(len(flat.kept)), length)


@dataclass(frozen=True)
class _Read:
    """Numbers of the constants, carry leaves, inputs and kept values that a backward pass reads."""

    constants: Sequence[int]
    carry: Sequence[int]
    x: Sequence[int]
    kept: Sequence[int]

    @staticmethod
    def everything(flat: FlatStep) -> "_Read":
        return _Read(*(range(len(values)) for values in (flat.constants, flat.carry, flat.x, flat.kept)))

    @staticmethod
    def among(flat: FlatStep, values: Collection[Value]) -> "_Read":
        groups = (flat.constants, flat.carry, flat.x, flat.kept)
        return _Read(*([index for index, value in enumerate(group) if value in values] for group in groups))


def _by_lax(flat: FlatStep, constants: Sequence[Any], length: int) -> Iterator[Kept]:
    """What the pull-back of each step reads, and nothing else: JAX drops the rest."""
    read = _Read.among(flat, _read_by_pull_back(flat))
    yield from _constants(constants[index] for index in read.constants)
    yield from _stacks("carry", flat.carry, read.carry, length)
    yield from _stacks("x", flat.x, read.x, length)
    varying = {index for index in read.kept if _varies(flat, flat.kept[index])}
    yield from _named(flat, sorted(varying), length)
    yield from _named(flat, [index for index in read.kept if index not in varying], 1)


def _varies(flat: FlatStep, atom: Atom) -> bool:
    """Whether a value differs from step to step. JAX takes one that does not out of the loop."""
    return not _read_by(needed(flat.program.equations, [atom]), [atom]).isdisjoint([*flat.carry, *flat.x])


def _by_segments(flat: FlatStep, constants: Sequence[Any], read: _Read, length: int, segment: int) -> Iterator[Kept]:
    """What the longest segments are run again from."""
    count = max(1, -(-length // segment))
    yield from _constants(constants[index] for index in read.constants)
    yield from _stacks("carry", flat.carry, read.carry, count)
    yield from _stacks("x", flat.x, read.x, length)


def _read_in_segment(flat: FlatStep) -> _Read:
    """What a segment's second run reads: also what makes the carry that its later steps read."""
    values = _read_by_pull_back(flat)
    while True:
        read = _Read.among(flat, values)
        new_carry = [flat.new_carry[index] for index in read.carry]
        more = _read_by(needed(flat.program.equations, new_carry), new_carry)
        if more <= values:
            return read
        values |= more


def _read_by_pull_back(flat: FlatStep) -> set[Value]:
    """What of its constants, carry, input and kept values a step's residuals are made of."""
    given = [*flat.constants, *flat.carry, *flat.x, *flat.kept]
    ends = list(accumulate(map(len, (flat.constants, flat.carry, flat.x, flat.kept))))

    def residuals(*leaves: Any) -> list[Any]:
        floats = [index for index in range(ends[2]) if jnp.issubdtype(leaves[index].dtype, jnp.inexact)]

        def differentiable(*some: Any) -> list[Any]:
            values = list((dict(enumerate(leaves)) | dict(zip(floats, some, strict=True))).values())
            groups = [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]
            new_carry, y = flat.restored(*groups)
            return [leaf for leaf in [*new_carry, *y] if jnp.issubdtype(leaf.dtype, jnp.inexact)]

        return jax.tree.leaves(jax.vjp(differentiable, *(leaves[index] for index in floats))[1])

    program = trace(residuals, *(jax.ShapeDtypeStruct(value.shape, value.dtype) for value in given))
    read = _read_by(needed(program.equations, program.outputs), program.outputs)
    return {*values_of(atom for atom, own in zip(given, program.inputs, strict=True) if own in read)}


def _read_by(equations: Iterable[Equation], outputs: Iterable[Atom]) -> set[Value]:
    return {*values_of(outputs), *values_of(atom for equation in equations for atom in equation.inputs)}


def _constants(constants: Iterable[Any]) -> Iterator[Kept]:
    for constant in constants:
        yield Kept("constant", constant, 1, prod(jnp.shape(constant)) * int(jnp.result_type(constant).itemsize))


def _stacks(source: Source, leaves: Sequence[Any], which: Iterable[int], times: int) -> Iterator[Kept]:
    for index in which:
        leaf = leaves[index]
        yield Kept(source, index, times, times * prod(leaf.shape) * int(leaf.dtype.itemsize))


def _named(flat: FlatStep, which: Iterable[int], length: int) -> Iterator[Kept]:
    for kept in _stacks("name", flat.kept, which, length):
        yield replace(kept, of=flat.kept_labels[kept.of])
