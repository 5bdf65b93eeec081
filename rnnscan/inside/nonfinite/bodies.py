"""A jaxpr, or a body within one, as flat equations with the labels that its values flow into."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.inside.nonfinite.labels import Label
from rnnscan.inside.nonfinite.patterns import Pattern, is_inexact, pattern_of
from rnnscan.ir.jaxprs import opened_jaxpr
from rnnscan.ir.program import Atom, Constant, Equation, Value, evaluate, read
from rnnscan.ir.rewrite import replace_inputs
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
        return dict(zip(self.variables, [*inputs, *self._computed(list(inputs))], strict=True))

    def run_step(self, consts: Sequence[Any], others: Sequence[Any]) -> tuple[list[Any], list[Any] | None]:
        """The results of a step, and what `walk_back` sees of its values: where they are NaN or infinite, and indices.

        Where these are equal in two steps, what is followed back from the same results comes from the same operands.

        Args:
            consts: the leading inputs, which all steps share. They are not compared.
            others: the other inputs.

        Returns:
            Both. In place of the second None if the body has a loop or branch, or keys beside floats: these may differ
            in more.
        """
        values = values_in(self, [*consts, *others])
        seen: list[Any] = []
        for variable in self.variables[len(consts) :]:
            value = values[variable]
            if is_inexact(variable):
                parts = [value.real, value.imag] if jnp.iscomplexobj(value) else [value]
                seen += [jnp.where(jnp.isinf(part), jnp.sign(part), jnp.isnan(part)).astype(jnp.int8) for part in parts]
            elif variable in self._beside_floats:
                seen.append(value)
        has_keys = any(jnp.issubdtype(each.dtype, jax.dtypes.extended) for each in seen)
        return results_in(self, values), None if self.inner or has_keys else seen

    @cached_property
    def variables(self) -> list[Value]:
        """All values: the inputs, and what the equations make."""
        return [*self.inputs, *(output for equation in self.equations for output in equation.outputs)]

    def _compute(self, inputs: list[Any]) -> list[Any]:
        values = values_in(self, inputs)
        return [values[variable] for variable in self.variables[len(self.inputs) :]]

    @cached_property
    def _computed(self) -> Callable[[list[Any]], list[Any]]:
        return jax.jit(self._compute, compiler_options=QUICK)

    @cached_property
    def _beside_floats(self) -> set[Atom]:
        """The operands of equations that compute with floats, such as indices."""
        with_floats = (each for each in self.equations if any(map(is_inexact, (*each.inputs, *each.outputs))))
        return {atom for equation in with_floats for atom in equation.inputs if isinstance(atom, Value)}

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


def with_constants_as_inputs(body: Body) -> tuple[Body, list[Any]]:
    """The body with the arrays of floats that its equations hold as further inputs, and these arrays."""
    operands = (atom for each in body.equations for atom in each.inputs)
    constants = [atom for atom in (*operands, *body.outputs) if isinstance(atom, Constant)]
    arrays = {id(atom.value): atom for atom in constants if atom.shape and is_inexact(atom)}
    inputs = {key: Value(atom.aval) for key, atom in arrays.items()}
    replacements: dict[Atom, Atom] = {atom: inputs[id(atom.value)] for atom in constants if id(atom.value) in inputs}
    whole = replace(
        body,
        inputs=(*body.inputs, *inputs.values()),
        equations=tuple(replace_inputs(each, replacements) for each in body.equations),
        outputs=tuple(replacements.get(atom, atom) for atom in body.outputs),
        _patterns={},
    )
    return whole, [atom.value for atom in arrays.values()]


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
QUICK = {"xla_backend_optimization_level": 0}
