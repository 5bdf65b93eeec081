"""The cycle of a loop as a function of its leaves, for one step or for all steps of a chunk, with its Jacobian."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan.engine.analysis.diagonal import Rule, diagonal_rules
from rnnscan.ir.components import Components
from rnnscan.ir.linear import is_linear
from rnnscan.ir.program import Atom, Equation, Value, inputs_of, outputs_of, read, values_of


@dataclass(frozen=True, eq=False)
class Cycle:
    """The equations between some leaves of the carry and their new values.

    Attributes:
        equations: the equations.
        leaves: the leaves.
        new_leaves: their new values.
    """

    equations: tuple[Equation, ...]
    leaves: tuple[Value, ...]
    new_leaves: tuple[Atom, ...]

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """The values that it reads, other than the leaves."""
        inside = {*self.leaves, *outputs_of(self.equations)}
        read_values = [*inputs_of(self.equations), *values_of(self.new_leaves)]
        return tuple(value for value in dict.fromkeys(read_values) if value not in inside)

    @property
    def depends(self) -> bool:
        """Whether the new leaves depend on the leaves."""
        return bool(self.equations) or not {*self.leaves}.isdisjoint(values_of(self.new_leaves))

    def is_linear(self, *, updates: bool = False) -> bool:
        """Whether it is one linear leaf. `updates` as `rnnscan.ir.linear.is_linear` has it."""
        return len(self.leaves) == 1 and is_linear(self.equations, *self.leaves, *self.new_leaves, updates=updates)

    @cached_property
    def diagonal(self) -> dict[Equation, Rule]:
        """The equations that mix elements, and how they run for the diagonal of the Jacobian."""
        return diagonal_rules(self.equations, self.leaves)

    def step(self, carry: Sequence[Any], read_values: Sequence[Any], *, iterates: bool = False) -> list[Any]:
        """The new leaves of one step.

        Args:
            carry: the leaves.
            read_values: the values of `reads`.
            iterates: whether derivatives are those of an iteration: they pass `stop_gradient`, and elements do not mix.
        """
        values = dict(zip([*self.leaves, *self.reads], [*carry, *read_values], strict=True))
        for equation in self.equations:
            operands = [read(atom, values) for atom in equation.inputs]
            if iterates and equation.name == "stop_gradient":
                results = operands
            elif iterates and equation in self.diagonal:
                results = self.diagonal[equation](equation, operands)
            else:
                results = equation.evaluate(*operands)
            values.update(zip(equation.outputs, results, strict=True))
        return [jnp.asarray(read(atom, values)) for atom in self.new_leaves]

    def with_jacobian(self, carry: Sequence[Any], read_values: Sequence[Any]) -> tuple[list[Any], Any]:
        """The new leaves of one step, and their derivatives by the leaves at the same element, `(k, k, ...)`.

        The derivatives are those of an iteration, as `step` has them.
        """

        def new_leaves(*carry: Any) -> list[Any]:
            return self.step(carry, read_values, iterates=True)

        new, columns = new_leaves(*carry), []
        for position in range(len(carry)):
            direction = [jnp.full_like(leaf, index == position) for index, leaf in enumerate(carry)]
            columns.append(jax.jvp(new_leaves, carry, direction)[1])
        return new, jnp.stack([jnp.stack(row) for row in zip(*columns, strict=True)])


def cycles_of(
    equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom]
) -> Iterator[tuple[tuple[int, ...], Cycle]]:
    """The cycles of a step, each with the positions of its leaves in the carry, which depend on each other.

    Args:
        equations: one step, in order.
        carry: its carry.
        new_carry: its new carry.
    """
    components = Components(equations, carry, new_carry)
    for members, between in zip(components.members, components.by_group(), strict=True):
        leaves, new_leaves = tuple(carry[i] for i in members), tuple(new_carry[i] for i in members)
        yield members, Cycle(tuple(between), leaves, new_leaves)
