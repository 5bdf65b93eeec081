"""A step as a program over flat lists of leaves, and as the function that the backward pass differentiates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import compress
from typing import Any

from jax.extend import core

from rnnscan.engine.analysis.activity import active_values, values_with_cotangents
from rnnscan.engine.analysis.derivative_reads import read_first
from rnnscan.engine.analysis.parts_of_carry import parts_to_keep
from rnnscan.engine.analysis.restore import restored
from rnnscan.engine.analysis.saving_calls import reading_residuals
from rnnscan.ir.axes import SameAxes, other_axes
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Program, Value, outputs_of, read, values_of
from rnnscan.ir.trace import Inliner, program_as_jaxpr
from rnnscan.naming import Names


# The label of values that a policy of `jax.checkpoint` within the step saves.
SAVED_BY_POLICY = "jax.checkpoint policy"


@dataclass(frozen=True)
class FlatStep:
    """A step as a program. The arrays that it closes over are its invariant inputs, so that they get gradients.

    It does not hold these arrays: the backward pass lives on in JAX's caches, and must not hold a trace through them.

    Attributes:
        program: `(constants, x, carry) -> (new carry, y and kept values)`.
        y_size: number of leaves of y.
        changing: positions of the carry leaves that the step changes.
        unchanged: positions of the others. They are the last constants, so that they are not kept at each step.
        saved: the values that policies of `jax.checkpoint` within the step save for the derivative.
        named: the values that carry a name, by position in `Names`. A name within a vmap or a branch has none.
        kept_labels: the labels of the kept values that have names, in their order. These come first.
        parts: for each kept value after these the position in `carry` of the leaf that it is a part of.
    """

    program: Program
    y_size: int
    changing: tuple[int, ...]
    unchanged: tuple[int, ...]
    named: Mapping[int, Atom]
    saved: tuple[Value, ...] = ()
    kept_labels: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()

    @property
    def constants(self) -> tuple[Value, ...]:
        """The arrays that the step closes over, then the carry leaves that it does not change."""
        return self.program.invariant

    @property
    def carry(self) -> tuple[Value, ...]:
        """The leaves of the carry that the step changes."""
        return self.program.carry

    @property
    def x(self) -> tuple[Value, ...]:
        """The leaves of the input."""
        return self.program.known

    @property
    def new_carry(self) -> tuple[Atom, ...]:
        """The leaves of the new carry."""
        return self.program.new_carry

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The leaves of constants, carry and x."""
        return (*self.constants, *self.carry, *self.x)

    @property
    def y(self) -> tuple[Atom, ...]:
        """The leaves of y."""
        return self.program.stacked[: self.y_size]

    @property
    def kept(self) -> tuple[Atom, ...]:
        """The values to keep: named ones, parts of the carry, and expensive ones."""
        return self.program.stacked[self.y_size :]

    @cached_property
    def constants_over_units(self) -> frozenset[int]:
        """The constants whose first axis is another axis of values than that of the rows, which carry and x have first.

        The first axis of a kernel is the last one of its other operand, also where both have one size.
        """
        program = self.program
        same = SameAxes(program.equations)
        for old, new in zip(program.carry, program.new_carry, strict=True):
            for axis in range(len(old.shape)):
                if isinstance(new, Value):
                    same.join((old, axis), (new, axis))
        rows = [(leaf, 0) for leaf in (*self.carry, *self.x) if leaf.shape]
        values = [*program.inputs, *outputs_of(program.equations)]
        unit_axes = other_axes(rows, values, same)
        constants = enumerate(self.constants)
        return frozenset(index for index, leaf in constants if leaf.shape and same.group((leaf, 0)) in unit_axes)

    @cached_property
    def repeats(self) -> dict[int, int]:
        """Carry leaf -> y leaf that is the same value."""
        y_leaves = {atom: index for index, atom in reversed(list(enumerate(self.y)))}
        return {
            index: y_leaves[atom]
            for index, atom in enumerate(self.new_carry)
            if isinstance(atom, Value) and atom in y_leaves
        }

    def can_keep(self, kept: frozenset[str], names: Names) -> bool:
        """Whether every named value to keep can be taken out of the step."""
        return names.to_keep(kept).keys() <= self.named.keys()

    def keeping(self, kept: frozenset[str], names: Names, *, policies: bool = False) -> "FlatStep":
        """The step with the values to keep among its outputs, each once.

        Args:
            kept: the names whose values are kept.
            names: the names that the step uses.
            policies: whether the values that policies of `jax.checkpoint` save are kept too.
        """
        inputs, labels = {*self.inputs}, dict[Value, str]()
        for position, label in names.to_keep(kept).items():
            atom = self.named.get(position)
            if isinstance(atom, Value) and atom not in inputs:
                labels.setdefault(atom, label)
        if policies:
            labels = dict.fromkeys(self.saved, SAVED_BY_POLICY) | labels
        return replace(
            self,
            program=replace(self.program, stacked=(*self.y, *labels)),
            kept_labels=tuple(labels.values()),
        )

    def keeping_parts(self) -> "FlatStep":
        """The step with the parts of its carry that are kept in place of whole leaves among its outputs."""
        program, parts = self.program, parts_to_keep(self.program, self.kept)
        return replace(self, program=replace(program, stacked=(*program.stacked, *parts)), parts=tuple(parts.values()))

    def keeping_too(self, *values: Value) -> "FlatStep":
        """The step with more values among its outputs, which have no names."""
        return replace(self, program=replace(self.program, stacked=(*self.program.stacked, *values)))

    @property
    def expensive(self) -> tuple[Atom, ...]:
        """The kept values that have no names and are no parts of the carry."""
        return self.kept[len(self.kept_labels) + len(self.parts) :]

    def run(self, constants: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The new carry and y."""
        return self.differentiable(constants, carry, x, {})[:2]

    def as_jaxpr(self, *, with_effects: bool = False) -> core.ClosedJaxpr:
        """The step as a jaxpr, `(*constants, *carry, *x) -> (*new carry, *y, *kept values with names)`."""
        outputs = [*self.new_carry, *self.program.stacked[: self.y_size + len(self.kept_labels)]]
        return program_as_jaxpr(self.program.equations, self.inputs, outputs, with_effects=with_effects)

    def active(self, wanted: Sequence[bool]) -> list[bool]:
        """Which leaves of the carry, then of y, have a tangent in some step, as in `lax.scan`.

        A leaf without a tangent is not differentiated: a step may hold a `while_loop` of a time that is a constant.

        Args:
            wanted: for each leaf of constants, carry and x whether it has a tangent before the first step.
        """
        active = self._active_values(tuple(wanted))
        return [value in active for value in (*self.carry, *self.y)]

    def with_cotangents(self, wanted: Sequence[bool], final: Sequence[bool], ys: Sequence[bool]) -> list[bool]:
        """Which leaves of constants, carry and x have a cotangent in some step, as in `lax.scan`.

        Args:
            wanted: for each of them whether it has a tangent before the first step.
            final: for each leaf of the final carry whether it has a cotangent.
            ys: the same for y.
        """
        results = compress([*self.new_carry, *self.y], [*final, *ys])
        reached = values_with_cotangents(self.program, self._active_values(tuple(wanted)), results)
        # Without a step the final carry is the initial one.
        first = [*[False] * len(self.constants), *final, *[False] * len(self.x)]
        return [value in reached or is_final for value, is_final in zip(self.inputs, first, strict=True)]

    @cached_property
    def _active_values(self) -> Callable[[tuple[bool, ...]], set[Value]]:
        """The values that have a tangent, from which inputs have one."""
        program, inputs = self.program, self.inputs
        return cache(lambda wanted: active_values(program, compress(inputs, wanted)))

    def differentiable(
        self, constants: Sequence[Any], carry: Sequence[Any], x: Sequence[Any], known: Mapping[Atom, Any]
    ) -> tuple[list[Any], list[Any], list[tuple[Any, Any]]]:
        """The new carry and y; the function to differentiate.

        It computes known values too, because their equations are differentiated. Other equations read the known ones,
        and with `reading_kept` the rules of derivatives do.

        Args:
            constants: the arrays that the step closes over.
            carry: the carry.
            x: the input.
            known: kept values and new carry leaves that are known.

        Returns:
            The new carry, y, and pairs of a computed value and the known one, for `reading_kept`.
        """
        values = dict(zip(self.inputs, [*constants, *carry, *x], strict=True))
        pairs = []
        # JAX cannot differentiate every equation that nothing reads: a `jax.custom_vjp` has no forward mode.
        for equation in needed(self.program.equations, [*self.new_carry, *self.y]):
            results = reading_residuals(equation, known).evaluate(*(read(atom, values) for atom in equation.inputs))
            for output, result in zip(equation.outputs, results, strict=True):
                values[output] = restored(result, known[output]) if output in known else result
                pairs += [(result, known[output])] if output in known else []
        return [read(atom, values) for atom in self.new_carry], [read(atom, values) for atom in self.y], pairs


def _scoped_by_names(equations: Sequence[Equation], marked: Mapping[int, Atom], names: Names) -> list[Equation]:
    """The equations within the scopes of names, which profilers show: each within the first name that needs it."""
    scopes: dict[Equation, str] = {}
    for position, atom in sorted(marked.items()):
        rest = [equation for equation in equations if equation not in scopes]
        scopes.update(dict.fromkeys(needed(rest, [atom]), names.labels[position]))
    return [
        replace(equation, origin=equation.origin.scoped(scopes[equation])) if equation in scopes else equation
        for equation in equations
    ]


def flatten(traced: Any, carry_size: int, names: Names) -> FlatStep:
    """Make a flat step of a traced one, which keeps no named values.

    Args:
        traced: the jaxpr of `(*carry, *x) -> (*new carry, *y)`, with named values marked.
        carry_size: number of leaves of the carry.
        names: the names that the step uses.

    Returns:
        The flat step.
    """
    inliner = Inliner()
    constants, inputs = ([Value(var.aval) for var in vs] for vs in (traced.jaxpr.constvars, traced.jaxpr.invars))
    outputs = inliner.inline(traced.jaxpr, constants, inputs)
    carry, new_carry = inputs[:carry_size], outputs[:carry_size]
    changing = [index for index, leaf in enumerate(carry) if new_carry[index] is not leaf]
    unchanged = [index for index, leaf in enumerate(carry) if new_carry[index] is leaf]
    program = Program(
        tuple(_scoped_by_names(inliner.equations, inliner.marked, names)),
        invariant=(*constants, *(carry[index] for index in unchanged)),
        known=tuple(inputs[carry_size:]),
        carry=tuple(carry[index] for index in changing),
        new_carry=tuple(new_carry[index] for index in changing),
        stacked=tuple(outputs[carry_size:]),
    )
    # A value within a vmap has fewer axes than the marked one.
    named = {position: atom for position, atom in inliner.marked.items() if atom.shape == names.shapes[position]}
    saved = read_first(program, set(values_of(inliner.saved)))
    return FlatStep(program, len(program.stacked), tuple(changing), tuple(unchanged), named, saved)
