"""prepare(): check and type the arguments of scan(), and put padding and resets around the cell.

The result is a `Call`. `scan` hands it to an engine; `explain`, `memory_report` and `plan` read it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core

from rnnscan import _checks as checks
from rnnscan._util.arguments import check_key
from rnnscan._util.call_context import add_call_context
from rnnscan._util.dtypes import resolve_weak_type
from rnnscan._util.messages import is_weak
from rnnscan._util.refs import has_refs, with_local_refs
from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import (
    Length,
    Padding,
    Step,
    one_step,
    reset_carry,
    skip_padding,
    truncate_gradient,
    type_of_step,
)
from rnnscan._util.varying import vary, varying
from rnnscan.engine.analysis.effects_of_rules import RuleEffects, effects_of_rules
from rnnscan.engine.analysis.flat_step import FlatStep, flatten
from rnnscan.engine.call.broadcast_carry import Rows, may_lack_rows, share_all, share_by_cell, share_by_step
from rnnscan.engine.units.mesh import shard_as_step
from rnnscan.engine.units.shard_units import shard_units
from rnnscan.ir.jaxprs import all_equations
from rnnscan.ir.leaves import replace_at
from rnnscan.memory import Memory, check_names
from rnnscan.naming import Names, StepInfo, trace_step
from rnnscan.newton import Newton
from rnnscan.protocols import Cell, check_cell
from rnnscan.randomness import with_key


# (step, carry, xs) -> what one step tells
Trace: TypeAlias = Callable[[Step, Any, Any], StepInfo]


@dataclass(frozen=True)
class Call:
    """A checked call of `scan`.

    Attributes:
        cell: the cell.
        params: its parameters.
        inputs: the inputs of the cell.
        carry: the initial carry, of the types that the step returns.
        xs: the inputs of the step: those of the cell, then resets, valid steps and step numbers.
        length: T.
        reverse: whether the steps run from the last to the first.
        unroll: steps per iteration of the loop, as in `lax.scan`.
        memory: the memory choice; None for plain autodiff.
        engine: the engine that the caller chose.
        parallel: how to solve loops in parallel over time; None: they run step by step.
        padding: the results of a padded step.
        valid: which steps are valid, `(T, N)` or `(T,)`; None: all.
        info: the trace of one step of the cell alone.
        wrap: puts padding, resets and truncation around a step.
    """

    cell: Cell
    params: Any
    inputs: Any
    carry: Any
    xs: Any
    length: Length
    reverse: bool
    unroll: int | bool
    memory: Memory | None
    engine: str
    parallel: Newton | None
    padding: Padding
    valid: Any
    info: StepInfo
    wrap: Callable[[Step], Step]

    @property
    def names(self) -> Names:
        """The names that one step uses."""
        return self.info.names

    @property
    def y(self) -> Any:
        """The shapes of one step's output."""
        return self.info.y

    def results(self, changing: Sequence[int], final: Sequence[Any], ys: Sequence[Any]) -> tuple[Any, Any]:
        """The final carry and ys of the call, from those leaves of the carry that its step changes, and those of ys."""
        leaves, structure = jax.tree.flatten(self.carry)
        carry = jax.tree.unflatten(structure, replace_at(leaves, changing, final))
        return carry, jax.tree.unflatten(jax.tree.structure(self.y), ys)

    @property
    def closes_over_arrays(self) -> bool:
        """Whether the cell reads arrays that are neither arguments nor, in a trace of these, computed from them."""
        params = set(map(id, jax.tree.leaves(self.params)))
        read = (const for const in self.info.traced.consts if id(const) not in params)
        return any(not isinstance(const, jax.core.Tracer) for const in read)

    @property
    def step(self) -> Step:
        """`(carry, x) -> (carry, y)`: the cell with its parameters, inside padding, resets and truncation."""
        return self.wrap(cell_step(self.cell, self.params))

    @cached_property
    def traced(self) -> Any:
        """The jaxpr of `step`. It reuses that of the cell, which is not traced again."""
        if self.xs is self.inputs:
            return self.info.traced
        types = jax.tree.map(type_of_step, self.xs)
        try:
            return jax.make_jaxpr(self.wrap(self._replay))(self.carry, types)
        except _OtherAxesError:
            return trace_step(self.step, self.carry, types).traced

    @property
    def step_to_run(self) -> Step:
        """`step`, or the jaxpr of its trace, which spares a second trace.

        The jaxpr marks names, is for other refs than those of the scan, and may hold what JAX can only trace again: its
        high level, and rules that read symbolic zeros. With a mask, inputs may vary over other axes of a mesh.
        """
        is_high = getattr(self.info.traced.jaxpr, "is_high", False)
        needs_cell = self.names.known or self.info.has_refs or is_high or self.reads_symbolic_zeros
        return self.step if needs_cell or self.xs is not self.inputs else self.wrap(self._replay)

    @cached_property
    def reads_symbolic_zeros(self) -> bool:
        """Whether the forward pass of a `jax.custom_vjp` is told which operands have a tangent.

        JAX (0.10 to 0.12) keeps the residuals' structure of the last pattern of zeros that it traced, and the jaxprs of
        all. A derivative of a derivative meets an earlier pattern again, and fails with the structure of another.
        """
        return any(
            equation.primitive.name == "custom_vjp_call" and equation.params["symbolic_zeros"]
            for equation in all_equations(self.info.traced.jaxpr)
        )

    def _replay(self, carry: Any, x: Any) -> tuple[Any, Any]:
        """The cell's jaxpr as a step."""
        leaves = jax.tree.leaves((carry, x))
        # Under `shard_map`, a mask makes an input vary over the mesh that did not vary where the cell was traced.
        if any(
            varying(jax.typeof(leaf)) != varying(aval)
            for leaf, aval in zip(leaves, self.info.traced.in_avals, strict=True)
        ):
            raise _OtherAxesError
        results = core.jaxpr_as_fun(self.info.traced)(*leaves)
        return jax.tree.unflatten(jax.tree.structure((self.info.carry, self.info.y)), results)

    @cached_property
    def flat(self) -> FlatStep:
        """The step as a program, which keeps no named values."""
        return flatten(self.traced, len(jax.tree.leaves(self.carry)), self.names)

    @cached_property
    def effects_of_rules(self) -> RuleEffects:
        """The effects of the rules of custom derivatives in the step."""
        return effects_of_rules(self.flat.program.equations)


class _OtherAxesError(Exception):
    """Raised where the cell's jaxpr is for inputs that vary over other axes of a mesh."""


def cell_step(cell: Cell, params: Any) -> Step:
    """The step of a cell, which checks that the cell returns a pair."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        return checks.carry_and_output(cell(params, carry, x))

    return named_after(step, cell)


def prepare(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    memory: Memory | None = Memory(),
    seq_lengths: Any = None,
    mask: Any = None,
    reset: Any = None,
    reset_to: Any = None,
    padding: Padding = "zero",
    truncate: int | None = None,
    engine: str = "auto",
    parallel: Newton | None = None,
    key: Any = None,
    first_step: Any = 0,
    trace: Trace | None = None,
) -> Call:
    """Check the arguments of `scan` and make a `Call` of them.

    Arguments are those of `scan`, with no budget for `memory`. Nothing runs but a trace of one step. Call it inside
    `jax.eval_shape` to read the call for arguments that are `jax.ShapeDtypeStruct`. `trace` takes the place of the
    trace: it tells of a step, a carry and `xs` what `trace_step` does.

    Returns:
        The call.

    Raises:
        TypeError, ValueError: as `scan` does.
    """
    check_cell("scan", cell, Cell)
    checks.check_reverse("scan", reverse)
    checks.check_options(memory=memory, unroll=unroll, truncate=truncate, padding=padding, engine=engine)
    checks.check_parallel(parallel, memory)
    xs = checks.as_arrays(xs, "xs")
    carry = checks.as_arrays(carry, "carry")
    length = checks.sequence_length(xs, length)
    valid = checks.validity(seq_lengths, mask, length)
    reset = checks.resets(reset, length)
    if valid is not None:
        checks.check_raw_keys(xs)
    if key is not None:
        check_key("scan", key)
        cell = with_key(cell, key, params, jax.tree.map(one_step, xs))
        xs = (xs, first_step + jnp.arange(length))

    params = _varying_as(carry, params, Rows.of(xs, valid, reset))
    cell, params, xs = shard_units(cell, params, carry, xs)
    rows = Rows.of(xs, valid, reset)
    carry = share_by_cell(cell, carry, jax.tree.map(type_of_step, xs), rows)
    carry, info = resolve_carry(cell_step(cell, params), carry, xs, rows, trace)
    if memory is not None:
        check_names(memory, info.names)
        checks.check_side_effects(memory, info)
    checks.check_rows(carry, xs, info.y, valid=valid, reset=reset, padding=padding)

    inputs, wrappers = xs, []
    reset_to = _reset_target(cell, carry, xs, reset, reset_to)
    if reset is not None:
        # A strong type wins over a weak one where a row is reset, so the carry has a strong one from the start.
        carry = jax.tree.map(lambda leaf: leaf.astype(leaf.dtype) if is_weak(leaf) else leaf, carry)
        xs, wrappers = (xs, reset), [partial(reset_carry, reset_to=reset_to)]
    if valid is not None:
        xs, wrappers = (xs, valid), [*wrappers, partial(skip_padding, padding=padding)]
    if truncate is not None:
        order = jnp.arange(length)
        xs = (xs, order[::-1] if reverse else order)
        wrappers = [*wrappers, partial(truncate_gradient, every=truncate)]
    return Call(
        cell=cell,
        params=params,
        inputs=inputs,
        carry=carry,
        xs=xs,
        length=length,
        reverse=reverse,
        unroll=unroll,
        memory=memory,
        engine=engine,
        parallel=parallel,
        padding=padding,
        valid=valid,
        info=info,
        wrap=lambda step: reduce(lambda step, wrapper: wrapper(step), wrappers, step),
    )


def _reset_target(cell: Any, carry: Any, xs: Any, reset: Any, reset_to: Any) -> Any:
    """The carry that `reset` goes back to, of the types of the carry; None without resets."""
    if reset is None:
        if reset_to is not None:
            raise ValueError(
                "scan: `reset_to` is the carry that `reset` goes back to; got `reset_to` without `reset`. Give both."
            )
        return None
    root = "reset_to"
    if reset_to is None:
        initial_carry = getattr(cell, "initial_carry", None)
        if initial_carry is None:
            raise ValueError(
                "scan: `reset` goes back to the cell's `initial_carry`, or to `reset_to`; got a cell without an "
                "`initial_carry`, and reset_to=None. Set `reset_to` to the carry that an episode starts with."
            )
        root = "cell.initial_carry(x)"
        reset_to = initial_carry(jax.tree.map(one_step, xs))
    return checks.reset_carry_like(carry, checks.as_arrays(reset_to, root), root, rows=reset.ndim - 1)


def _varying_as(carry: Any, params: Any, rows: Rows | None) -> Any:
    """Parameters that vary over the axes of a mesh over which all of the carry does, under `jax.shard_map`.

    So their gradients are added up over the devices once, and not at each step, where parameters meet what varies. A
    leaf without the batch axis will be repeated for the rows, and vary as they do.
    """

    def axes_of(leaf: Any) -> frozenset[str]:
        axes = varying(jax.typeof(leaf))
        return varying(jax.typeof(rows.source)) if not axes and rows is not None and may_lack_rows(leaf, rows) else axes

    axes = [*map(axes_of, jax.tree.leaves(carry))]
    return vary(params, frozenset.intersection(*axes)) if axes else params


def resolve_carry(
    step: Step, carry: Any, xs: Any, rows: Rows | None = None, trace: Trace | None = None
) -> tuple[Any, StepInfo]:
    """Trace the step, and give the carry the types that the step returns.

    A Python number in the carry is weakly typed: it takes the dtype of the other operand. Each pass can resolve
    one leaf more, where one leaf feeds another. A leaf without the batch axis is repeated for the rows. A leaf is
    sharded over the explicit axes of a mesh over which the step returns it.
    """
    while True:
        carry, info = _trace_or_repeat(trace or _trace_first, step, carry, xs, rows)
        checks.check_structure(carry, info.carry)
        resolved = share_by_step(jax.tree.map(resolve_weak_type, carry, info.carry), info.carry, rows)
        resolved = shard_as_step(resolved, info.traced)
        if all(a is b for a, b in zip(jax.tree.leaves(resolved), jax.tree.leaves(carry), strict=True)):
            checks.check_carry(carry, info.carry)
            checks.check_explicit_axes(carry, info.traced)
            return carry, info
        carry = resolved


def _trace_first(step: Step, carry: Any, xs: Any) -> StepInfo:
    types = jax.tree.map(type_of_step, xs)
    if not has_refs(xs):
        return trace_step(step, carry, types)
    return replace(trace_step(with_local_refs(step, xs), carry, types), has_refs=True)


def _trace_or_repeat(trace: Trace, step: Step, carry: Any, xs: Any, rows: Rows | None) -> tuple[Any, StepInfo]:
    """Trace the step on the carry; if that fails, on the carry with its leaves repeated for the rows."""
    try:
        return carry, trace(step, carry, xs)
    except Exception as error:
        repeated = share_all(carry, rows)
        info = None if repeated is carry else _trace_repeated(trace, step, repeated, xs)
        if info is None:
            add_call_context(error, carry, jax.tree.map(type_of_step, xs), xs)
            raise
        return repeated, info


def _trace_repeated(trace: Trace, step: Step, carry: Any, xs: Any) -> StepInfo | None:
    """The trace on a repeated carry, if the step takes it and returns one like it."""
    try:
        info = trace(step, carry, xs)
    except Exception:  # The first error is the one to show.
        return None
    types = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (carry, info.carry)]
    return info if types[0] == types[1] else None
