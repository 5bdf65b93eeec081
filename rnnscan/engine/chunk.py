"""The values of a chunk of steps, computed on demand: for all its steps at once, or summed over them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan.engine.split import needed
from rnnscan.engine.trace import Atom, Constant, Equation, Value


# Of one operand, and linear in it: the sum over steps of the result is the result of the sum.
LINEAR = frozenset({"neg", "transpose", "reshape", "reduce_sum", "broadcast_in_dim", "squeeze", "copy"})
ADDITIVE = frozenset({"add", "add_any", "sub"})


class Chunk:
    """Values of a number of steps. Those that vary from step to step have a leading axis of steps.

    Args:
        steps: how many steps.
        invariant: values that are the same at every step.
        varying: values of each step, stacked.
        looped: values that loops over the steps will make, and `add` will bring.
        equations: what else can be asked for.
    """

    def __init__(
        self,
        steps: int,
        invariant: Mapping[Value, Any],
        varying: Mapping[Value, Any],
        looped: Iterable[Value],
        equations: Sequence[Equation],
    ) -> None:
        self.steps = steps
        self.varying = dict(varying)
        self._invariant = invariant
        self._equations = equations
        self._maker = {output: equation for equation in equations for output in equation.outputs}
        self._sums: dict[Atom, Any] = {}
        self._varies = {*varying, *looped}
        for equation in equations:
            if any(self.varies(atom) for atom in equation.inputs):
                self._varies.update(equation.outputs)

    def add(self, varying: Mapping[Value, Any]) -> None:
        """Bring values of each step, stacked."""
        self.varying.update(varying)

    def varies(self, atom: Atom) -> bool:
        """Whether a value differs from step to step."""
        return isinstance(atom, Value) and atom in self._varies

    def stacked(self, atom: Atom) -> Any:
        """A value at each step, with the axis of steps even where it does not vary."""
        value = self.read(atom)
        return value if self.varies(atom) else jnp.broadcast_to(value, (self.steps, *jnp.shape(value)))

    def sum(self, atom: Atom) -> Any:
        """The sum of a value over the steps.

        It is pushed through linear equations down to products of two values that vary, of which one product that
        contracts over the steps too gives the sum: `sum_t a_t^T b_t` never makes a stack of weight-sized arrays.
        """
        if not self.varies(atom):
            return self.read(atom) * self.steps
        if atom not in self._sums:
            self._sums[atom] = self._sum(atom)
        return self._sums[atom]

    def _sum(self, atom: Atom) -> Any:
        equation = self._maker.get(atom)  # type: ignore[arg-type]
        primitive = equation.primitive.name if equation is not None else ""
        if equation is None:
            pass
        elif primitive in LINEAR:
            return equation.evaluate(self.sum(equation.inputs[0]))[0]
        elif primitive in ADDITIVE:
            return equation.evaluate(*map(self.sum, equation.inputs))[0]
        elif primitive == "dot_general":
            return self._sum_of_product(equation)
        return jnp.sum(self.read(atom), axis=0)

    def _sum_of_product(self, equation: Equation) -> Any:
        left, right = equation.inputs
        if not self.varies(left):
            return equation.evaluate(self.read(left), self.sum(right))[0]
        if not self.varies(right):
            return equation.evaluate(self.sum(left), self.read(right))[0]
        contracting, batch = equation.params["dimension_numbers"]
        with_steps = [(0, *(axis + 1 for axis in axes)) for axes in contracting]
        shifted = [tuple(axis + 1 for axis in axes) for axes in batch]
        params = {**equation.params, "dimension_numbers": (tuple(with_steps), tuple(shifted))}
        return replace(equation, params=params).evaluate(self.read(left), self.read(right))[0]

    def read(self, atom: Atom) -> Any:
        """A value, with an axis of steps where it varies."""
        if isinstance(atom, Constant):
            return atom.value
        if atom in self._invariant:
            return self._invariant[atom]
        if atom not in self.varying:
            for equation in needed(self._equations, [atom]):
                if equation.outputs[0] not in self.varying:
                    self.varying.update(zip(equation.outputs, self._evaluate(equation), strict=True))
        return self.varying[atom]

    def _evaluate(self, equation: Equation) -> list[Any]:
        operands = [self.read(atom) for atom in equation.inputs]
        axes = [0 if self.varies(atom) else None for atom in equation.inputs]
        if not any(axis == 0 for axis in axes):
            return equation.evaluate(*operands)
        return jax.vmap(equation.evaluate, in_axes=axes)(*operands)
