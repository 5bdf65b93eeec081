"""The backward pass: chunk by chunk from the last step to run to the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.chunk import Chunk
from rnnscan.engine.deferral import accumulated_in_loop
from rnnscan.engine.split import Roles, split
from rnnscan.engine.step import FlatStep, one_step
from rnnscan.engine.trace import Atom, Constant, Equation, Value, trace


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Saved:
    """What stays in memory between the passes.

    Attributes:
        constants: what the step closes over.
        initial: the carry before the first step.
        carries: carry leaf -> the carry before each step, `(T, ...)`.
        repeated: y leaf -> its stack, of those that are carry leaves too.
        xs: the inputs.
        kept: the named values that are kept, stacked.
    """

    constants: list[Any]
    initial: list[Any]
    carries: dict[int, Any]
    repeated: dict[int, Any]
    xs: list[Any]
    kept: list[Any]


@dataclass(frozen=True)
class Backward:
    """The backward pass of a scan over a step."""

    flat: FlatStep
    length: int
    reverse: bool
    unroll: int | bool
    chunk: int

    def __call__(self, saved: Saved, differentiated: Sequence[bool], final: Any, ys: Any) -> Any:
        """Pull cotangents of the final carry and of ys back to constants, initial carry and xs.

        Args:
            saved: what was kept.
            differentiated: for each leaf of constants, carry and xs whether its gradient is wanted.
            final: cotangents of the final carry, symbolic zeros among them.
            ys: cotangents of ys, symbolic zeros among them.

        Returns:
            Cotangents of constants, initial carry and xs; None for those that are not wanted.
        """
        pull = _PullBack(self.flat, saved, differentiated, ys)
        known = [*self._carries(saved), *saved.xs, *saved.kept, *pull.nonzero_ys(ys)]
        ct_carry = [_instantiated(final[index]) for index in pull.float_carry]
        program = pull.program(saved, known, ct_carry)
        step = _SplitStep.of(program, pull.roles(program, saved, len(known)), saved.constants, self)

        count, rest = divmod(self.length, self.chunk)
        # Time begins with the shorter chunk: it is the last to be pulled back through.
        whole = slice(0, count * self.chunk) if self.reverse else slice(rest, None)
        shorter = slice(count * self.chunk, None) if self.reverse else slice(0, rest)
        chunks = [leaf[whole].reshape(count, self.chunk, *leaf.shape[1:]) for leaf in known]
        state, ct_xs = lax.scan(
            lambda state, known: step.pull_chunk(state, known, self.chunk),
            (ct_carry, step.zero_sums()),
            chunks,
            length=count,
            reverse=not self.reverse,
        )
        ct_xs = [leaf.reshape(count * self.chunk, *leaf.shape[2:]) for leaf in ct_xs]
        if rest:
            state, first = step.pull_chunk(state, [leaf[shorter] for leaf in known], rest)
            pairs = zip(ct_xs, first, strict=True) if self.reverse else zip(first, ct_xs, strict=True)
            ct_xs = [jnp.concatenate(pair) for pair in pairs]
        return pull.in_place(saved, *state, ct_xs)

    def _carries(self, saved: Saved) -> list[Any]:
        """The carry before each step; where y repeats it, it is y one step before."""
        carries = []
        for index, initial in enumerate(saved.initial):
            if index in saved.carries:
                carries.append(saved.carries[index])
            else:
                after = saved.repeated[self.flat.repeats[index]]
                parts = [after[1:], initial[None]] if self.reverse else [initial[None], after[:-1]]
                carries.append(jnp.concatenate(parts))
        return carries


class _PullBack:
    """One step's pull-back as a function of flat arguments: what it is given, and what it gives."""

    def __init__(self, flat: FlatStep, saved: Saved, differentiated: Sequence[bool], ct_ys: Sequence[Any]) -> None:
        self.flat = flat
        constants, carry = len(saved.constants), len(saved.initial)
        wanted = list(differentiated)
        self.wanted_constants = [index for index in range(constants) if wanted[index]]
        self.float_carry = [index for index, leaf in enumerate(saved.initial) if _is_float(leaf)]
        self.wanted_xs = [index for index in range(len(saved.xs)) if wanted[constants + carry + index]]
        self.nonzero = [index for index, leaf in enumerate(ct_ys) if not _is_zero(leaf)]

    def nonzero_ys(self, ct_ys: Sequence[Any]) -> list[Any]:
        return [ct_ys[index] for index in self.nonzero]

    def program(self, saved: Saved, known: Sequence[Any], ct_carry: Sequence[Any]) -> Any:
        return trace(self._pull_back(saved), *saved.constants, *map(one_step, known), *ct_carry)

    def _pull_back(self, saved: Saved) -> Any:
        sizes = [len(saved.constants), len(saved.initial), len(saved.xs), len(saved.kept), len(self.nonzero)]

        def pull_back(*leaves: Any) -> list[Any]:
            constants, carry, x, kept, ct_y, ct_carry = _cut(leaves, sizes)

            def differentiable(some_constants: Any, some_carry: Any, some_x: Any) -> list[Any]:
                new_carry, y = self.flat.restored(
                    _with(constants, self.wanted_constants, some_constants),
                    _with(carry, self.float_carry, some_carry),
                    _with(x, self.wanted_xs, some_x),
                    kept,
                )
                return [*(new_carry[index] for index in self.float_carry), *(y[index] for index in self.nonzero)]

            some = (
                [constants[index] for index in self.wanted_constants],
                [carry[index] for index in self.float_carry],
                [x[index] for index in self.wanted_xs],
            )
            cotangents = jax.vjp(differentiable, *some)[1]([*ct_carry, *ct_y])
            return [leaf for group in cotangents for leaf in group]

        return pull_back

    def roles(self, program: Any, saved: Saved, known: int) -> Roles:
        invariant, known_inputs, carry = _cut(program.inputs, [len(saved.constants), known])
        summed, new_carry, stacked = _cut(program.outputs, [len(self.wanted_constants), len(self.float_carry)])
        return Roles(invariant, known_inputs, carry, new_carry, summed, stacked)

    def in_place(self, saved: Saved, ct_carry: Sequence[Any], sums: Sequence[Any], ct_xs: Sequence[Any]) -> Any:
        constants: list[Any] = [None] * len(saved.constants)
        for index, total in zip(self.wanted_constants, sums, strict=True):
            constants[index] = total.astype(saved.constants[index].dtype)
        carry: list[Any] = [None] * len(saved.initial)
        xs: list[Any] = [None] * len(saved.xs)
        return constants, _with(carry, self.float_carry, ct_carry), _with(xs, self.wanted_xs, ct_xs)


@dataclass(frozen=True)
class _SplitStep:
    """A step's pull-back, split, with what is invariant computed."""

    roles: Roles
    parts: Any
    invariant: dict[Value, Any]
    backward: Backward

    @staticmethod
    def of(program: Any, roles: Roles, constants: Sequence[Any], backward: Backward) -> "_SplitStep":
        parts = split(program, roles, accumulated_in_loop(program, roles))
        invariant = dict(zip(roles.invariant, constants, strict=True))
        _run(parts.invariant, invariant)
        return _SplitStep(roles, parts, invariant, backward)

    def zero_sums(self) -> list[Any]:
        return [jnp.zeros(_shape(atom), jnp.promote_types(_dtype(atom), jnp.float32)) for atom in self.roles.summed]

    def pull_chunk(self, state: Any, known: Sequence[Any], steps: int) -> tuple[Any, list[Any]]:
        """Pull the cotangent of the carry back through a chunk of steps, and add to the sums over them."""
        ct_carry, sums = state
        varying = dict(zip(self.roles.known, known, strict=True))
        before = Chunk(steps, self.invariant, varying, self.parts.before)
        to_body = {value: before.stacked(value) for value in self.parts.to_body}
        (ct_carry, in_loop), from_body = lax.scan(
            self._pull_step,
            (ct_carry, [sums[position] for position in self.parts.accumulated]),
            list(to_body.values()),
            length=steps,
            reverse=not self.backward.reverse,
            unroll=self.backward.unroll,
        )
        varying |= to_body | dict(zip(self.parts.from_body, from_body, strict=True))
        after = Chunk(steps, self.invariant, varying, [*self.parts.before, *self.parts.after])
        new_sums = [
            total if position in self.parts.accumulated else total + after.sum(atom)
            for position, (atom, total) in enumerate(zip(self.roles.summed, sums, strict=True))
        ]
        stacked = [after.stacked(atom) for atom in self.roles.stacked]
        return (ct_carry, _with(new_sums, self.parts.accumulated, in_loop)), stacked

    def _pull_step(self, state: Any, known: Sequence[Any]) -> tuple[Any, list[Any]]:
        ct_carry, sums = state
        values = {
            **self.invariant,
            **dict(zip(self.roles.carry, ct_carry, strict=True)),
            **dict(zip(self.parts.to_body, known, strict=True)),
        }
        _run(self.parts.body, values)
        added = [_read(self.roles.summed[position], values) for position in self.parts.accumulated]
        new_sums = [total + part for total, part in zip(sums, added, strict=True)]
        new_carry = [_read(atom, values) for atom in self.roles.new_carry]
        return (new_carry, new_sums), [values[value] for value in self.parts.from_body]


def _run(equations: Sequence[Equation], values: dict[Value, Any]) -> None:
    for equation in equations:
        results = equation.evaluate(*(_read(atom, values) for atom in equation.inputs))
        values.update(zip(equation.outputs, results, strict=True))


def _read(atom: Atom, values: dict[Value, Any]) -> Any:
    return atom.value if isinstance(atom, Constant) else values[atom]


def _cut(leaves: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """The leaves in groups of the given sizes, and what is left as the last one."""
    groups, begin = [], 0
    for size in sizes:
        groups.append(list(leaves[begin : begin + size]))
        begin += size
    return [*groups, list(leaves[begin:])]


def _with(leaves: Sequence[Any], indices: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    replaced = list(leaves)
    for index, replacement in zip(indices, replacements, strict=True):
        replaced[index] = replacement
    return replaced


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _is_zero(leaf: Any) -> bool:
    return isinstance(leaf, jax.custom_derivatives.SymbolicZero) or leaf.dtype == jax.dtypes.float0


def _instantiated(leaf: Any) -> Any:
    if isinstance(leaf, jax.custom_derivatives.SymbolicZero):
        return jnp.zeros(leaf.shape, leaf.dtype)
    return leaf


def _shape(atom: Atom) -> Any:
    return atom.aval.shape if isinstance(atom, Value) else jnp.shape(atom.value)


def _dtype(atom: Atom) -> Any:
    return atom.aval.dtype if isinstance(atom, Value) else jnp.result_type(atom.value)
