"""A jaxpr, or a body within one, as flat equations with the labels that its values flow into."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan.inside.nonfinite.labels import Label
from rnnscan.inside.nonfinite.patterns import Pattern, pattern_of
from rnnscan.ir.jaxprs import opened_jaxpr
from rnnscan.ir.program import Atom, Constant, Equation, Value, evaluate, read
from rnnscan.ir.trace import Inliner


@dataclass(frozen=True)
class Labeled:
    """A value with a label.

    Attributes:
        label: the label.
        atom: the value.
        position: the number of equations before the label.
        is_tangent: whether the value is a tangent or a cotangent of the labeled one.
    """

    label: Label
    atom: Atom
    position: int
    is_tangent: bool


@dataclass(frozen=True, eq=False)
class Body:
    """Flat equations between inputs and outputs, in running order.

    Attributes:
        inputs: the inputs.
        equations: the equations. Calls are inlined; loops and branches are whole.
        outputs: the results.
        labels: the values with labels.
        inner: the loops and branches among the equations, by their positions.
    """

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    labels: tuple[Labeled, ...]
    inner: Mapping[int, Any]
    _patterns: dict[int, Pattern] = field(default_factory=dict)

    @property
    def scan_label(self) -> Label | None:
        """A label of the scan whose step this is; None: it is no step of a scan of the library.

        A loop that stops by a condition has its step in a branch.
        """
        if self.labels:
            return self.labels[0].label
        branches = (branch for inner in self.inner.values() if not inner.is_loop for branch in inner.bodies)
        return next((label for each in branches if (label := each.scan_label) is not None), None)

    def values(self, inputs: Sequence[Any]) -> dict[Value, Any]:
        """All values of the body, computed by one compiled program."""
        return dict(zip(self._variables, [*inputs, *self._computed(list(inputs))], strict=True))

    def values_of_steps(self, consts: Sequence[Any], others: Sequence[Any]) -> Callable[[int], dict[Value, Any]]:
        """All values of the body in several steps, computed by one compiled program.

        Args:
            consts: the leading inputs, which all steps share.
            others: the other inputs, stacked over the steps, on the host.

        Returns:
            A function from the number of a step to its values.
        """
        stacked = [on_host(leaf) for leaf in self._computed_in_steps(list(consts), list(others))]

        def values(step: int) -> dict[Value, Any]:
            of_step = (leaf[step] for leaf in (*others, *stacked))
            return dict(zip(self._variables, [*consts, *of_step], strict=True))

        return values

    @cached_property
    def _variables(self) -> list[Value]:
        return [*self.inputs, *(output for equation in self.equations for output in equation.outputs)]

    def _compute(self, inputs: list[Any]) -> list[Any]:
        values = values_in(self, inputs)
        return [values[variable] for variable in self._variables[len(self.inputs) :]]

    @cached_property
    def _computed(self) -> Callable[[list[Any]], list[Any]]:
        return jax.jit(self._compute, compiler_options=_QUICK)

    @cached_property
    def _computed_in_steps(self) -> Callable[[list[Any], list[Any]], list[Any]]:
        def run(consts: list[Any], others: list[Any]) -> list[Any]:
            return lax.map(lambda of_step: self._compute([*consts, *of_step]), others)

        return jax.jit(run, compiler_options=_QUICK)

    def pattern(self, position: int) -> Pattern:
        """Which elements of an equation's results read which of its operands."""
        if position not in self._patterns:
            self._patterns[position] = pattern_of(self.equations[position])
        return self._patterns[position]

    @property
    def maker(self) -> dict[Atom, Equation]:
        """The equation that makes each value."""
        return {output: equation for equation in self.equations for output in equation.outputs}


def body_of(jaxpr: Any, inner_of: Callable[[Equation], Any]) -> Body:
    """The equations of a jaxpr, closed or not.

    Args:
        jaxpr: the jaxpr.
        inner_of: from an equation to the loop or branch that it is; None: it is another.
    """
    flat, consts = opened_jaxpr(jaxpr)
    inputs = tuple(Value(var.aval) for var in flat.invars)
    inliner = Inliner(all_calls=True)
    outputs = inliner.inline(flat, [*map(Constant, consts)], inputs)
    opened = ((position, inner_of(equation)) for position, equation in enumerate(inliner.equations))
    inner = {position: each for position, each in opened if each is not None}
    return Body(inputs, tuple(inliner.equations), tuple(outputs), tuple(_labels(inliner)), inner)


def _labels(inliner: Inliner) -> list[Labeled]:
    """The labels in running order."""
    names = [(position, equation) for position, equation in enumerate(inliner.equations) if equation.name == "name"]
    labels = [
        Labeled(label, equation.inputs[0], position, is_tangent=False)
        for position, equation in names
        if (label := Label.read(equation.params["name"])) is not None
    ]
    named = {output for _, equation in names for output in equation.outputs}
    for text, operands, position in inliner.named_calls:
        label = Label.read(text)
        if label is not None:
            tangents = [operand for operand in operands if operand not in named]
            labels += [Labeled(label, operand, position, is_tangent=True) for operand in tangents]
    return sorted(labels, key=lambda each: each.position)


def reached(equations: Sequence[Equation], start: Sequence[Value]) -> set[Atom]:
    """The values that depend on some values, with these."""
    reach: set[Atom] = set(start)
    for equation in equations:
        if any(operand in reach for operand in equation.inputs):
            reach.update(equation.outputs)
    return reach


def on_host(leaf: Any) -> Any:
    """An array of numbers as NumPy slices it, in a tenth of JAX's time; others, such as keys, as they are."""
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else np.asarray(leaf)


def values_in(body: Body, inputs: Sequence[Any]) -> dict[Value, Any]:
    """All values of a body."""
    values: dict[Value, Any] = dict(zip(body.inputs, inputs, strict=True))
    evaluate(body.equations, values)
    return values


def results_in(body: Body, values: Mapping[Value, Any]) -> list[Any]:
    """The results of a body."""
    return [read(atom, values) for atom in body.outputs]


# A body's values are computed a few times, and compiled once: compile quickly.
_QUICK = {"xla_backend_optimization_level": 0}
