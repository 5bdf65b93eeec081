"""A step with its invariant work before the loop, for TPUs, where a step's elementwise work costs most.

Autodiff of `lax.scan` repeats, at every step, work that depends on closed-over arrays only. A bias is the
common case: its gradient is a sum over the rows at every step, which a TPU does slowly, because rows are what one
instruction works on at once. Here biases, and other vectors that are repeated for the rows, are repeated before the
loop, and the sum over the rows is a product with a row of ones, which the matrix unit does.

By the estimate of the TPU's compiler, a training step of an LSTM with 256 units takes 0.64 of the cycles of plain
autodiff so, with `jax.checkpoint` on the step, instead of 0.85 (docs/accelerators.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._step_wrappers import Step
from rnnscan.engine.fission.execute.linear_call import LinearMap, linear_call
from rnnscan.engine.fission.program import (
    Atom,
    Equation,
    Value,
    depending,
    determined,
    evaluate,
    inputs_of,
    needed,
    outputs_of,
    partition,
    read,
    values_of,
)
from rnnscan.engine.fission.trace import Inliner


# The rows of a tile. A sum over rows is a product that makes so many rows, of which one is not zero.
_TILE = 8
# They take an operand whose axes of size 1 are repeated.
_REPEATING = frozenset({"add", "sub", "mul", "div", "max", "min"})


def hoist(step: Step, carry: Any, x: Any) -> Step:
    """The step with its invariant work done now.

    Args:
        step: the step. Arrays that it closes over get gradients.
        carry: the carry, or its types.
        x: the types of a step's input.

    Returns:
        `(carry, x) -> (carry, y)`, to be called in loops.
    """
    traced, results = jax.make_jaxpr(step, return_shape=True)(carry, x)
    structure = jax.tree.structure(results)
    inliner = Inliner(whole=("checkpoint", "remat2"))
    constants, inputs = ([Value(var.aval) for var in group] for group in (traced.jaxpr.constvars, traced.jaxpr.invars))
    outputs = inliner.inline(traced.jaxpr, constants, inputs)
    hoisted = _Hoisted.of(inliner.equations, outputs, dict(zip(constants, traced.consts, strict=True)))

    def run(carry: Any, x: Any) -> Any:
        leaves = hoisted.run(dict(zip(inputs, jax.tree.leaves((carry, x)), strict=True)))
        return jax.tree.unflatten(structure, leaves)

    return run


@dataclass
class _Hoisted:
    """A step's varying equations, and its invariant values.

    Attributes:
        equations: the equations of a step.
        outputs: its outputs.
        values: the invariant values.
        rows: of invariant values that are repeated for the rows, those that get their gradients, and the matrix that
            sums a cotangent into the first of them.
    """

    equations: list[Equation]
    outputs: Sequence[Atom]
    values: dict[Value, Any]
    rows: dict[Value, tuple[Any, Any]] = field(default_factory=dict)

    @staticmethod
    def of(equations: Sequence[Equation], outputs: Sequence[Atom], constants: dict[Value, Any]) -> "_Hoisted":
        equations = needed(equations, outputs)
        # A cast to 16 bits stays in the loop, which adds up the gradient of what it casts. XLA moves it out.
        kept = [equation for equation in equations if not _narrows(equation)]
        made = determined(kept, constants)
        # What follows from no array is a constant, which each step makes faster than it reads it.
        fixed = made & depending(equations, constants)
        invariant, varying = partition(equations, fixed)
        values = dict(constants)
        evaluate(needed([e for e in equations if made.issuperset(e.outputs)], outputs_of(invariant)), values)
        values = {value: leaf for value, leaf in values.items() if value in fixed or value in constants}
        hoisted = _Hoisted([], outputs, values)
        hoisted._repeat(varying, fixed)
        wanted = {*inputs_of(hoisted.equations), *values_of(outputs)}
        hoisted.values = {value: _widened(leaf) for value, leaf in values.items() if value in wanted}
        return hoisted

    def run(self, inputs: dict[Value, Any]) -> list[Any]:
        """The outputs of a step."""
        values = {value: _narrowed(leaf, value.dtype) for value, leaf in self.values.items()} | inputs
        for value, rows in self.rows.items():
            values[value] = _with_gradient_of(*rows, values[value])
        evaluate(self.equations, values)
        return [read(atom, values) for atom in self.outputs]

    def _repeat(self, equations: Sequence[Equation], fixed: set[Value]) -> None:
        """Repeat the invariant vectors that equations repeat for their rows."""
        made: dict[tuple[Value, tuple[int, ...]], Value] = {}
        for equation in equations:
            shape = equation.outputs[0].shape
            operands = list(equation.inputs)
            for position, atom in enumerate(operands):
                if isinstance(atom, Value) and atom in fixed and _is_repeated(equation, atom):
                    if (atom, shape) not in made:
                        made[atom, shape] = self._repeated(atom, shape)
                    operands[position] = made[atom, shape]
            self.equations.append(replace(equation, inputs=tuple(operands)))

    def _repeated(self, vector: Value, shape: tuple[int, ...]) -> Value:
        leaf = self.values[vector]
        value = Value(jax.typeof(jnp.broadcast_to(leaf, shape)))
        self.values[value] = jnp.broadcast_to(lax.stop_gradient(leaf), shape)
        # Sums over many steps are made in at least float32.
        wide = leaf.astype(jnp.promote_types(vector.dtype, jnp.float32)).reshape(1, -1)
        summing = lax.broadcasted_iota(jnp.int32, (_TILE, prod(shape) // wide.shape[1]), 0) == 0
        self.rows[value] = jnp.broadcast_to(wide, (_TILE, wide.shape[1])), summing.astype(wide.dtype)
        return value


def _narrows(equation: Equation) -> bool:
    """Whether an equation casts floats to 16 bits."""
    dtypes = [equation.inputs[0].dtype, equation.outputs[0].dtype] if equation.inputs else []
    floats = all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes)
    is_cast = equation.primitive.name == "convert_element_type"
    return is_cast and floats and jnp.promote_types(*dtypes) != dtypes[1]


def _widened(leaf: Any) -> Any:
    """An array that a loop reads, so that the gradients of all steps are added up in at least float32."""
    dtype = jnp.result_type(leaf)
    return leaf.astype(jnp.promote_types(dtype, jnp.float32)) if jnp.issubdtype(dtype, jnp.floating) else leaf


def _narrowed(leaf: Any, dtype: Any) -> Any:
    return leaf if jnp.result_type(leaf) == dtype else leaf.astype(dtype)


def _is_repeated(equation: Equation, operand: Value) -> bool:
    """Whether an equation repeats an invariant vector for several rows."""
    shape, own = equation.outputs[0].shape, operand.shape
    sizes_known = all(isinstance(size, int) for size in shape)
    if equation.primitive.name not in _REPEATING or len(own) != len(shape) or not sizes_known:
        return False
    leading = next((axis for axis, size in enumerate(own) if size != 1), len(own))
    repeats_leading_only = leading < len(own) and own[leading:] == shape[leading:]
    return repeats_leading_only and prod(shape[:leading]) > 1 and jnp.issubdtype(operand.dtype, jnp.floating)


@jax.custom_jvp
def _with_gradient_of(rows: Any, summing: Any, repeated: Any) -> Any:
    """Values that were repeated from the first of some rows, with a gradient of that row."""
    return repeated


@_with_gradient_of.defjvp
def _differentiate(primals: tuple[Any, Any, Any], tangents: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    rows, summing, repeated = primals
    result, width = jax.typeof(repeated), rows.shape[1]

    def repeat(_: list[Any], given: list[Any]) -> list[Any]:
        first = given[0][:1].astype(result.dtype)
        return [jnp.broadcast_to(first, (result.size // width, width)).reshape(result.shape)]

    def add_up(residuals: list[Any], cotangents: list[Any]) -> list[Any]:
        (summing,), cotangent = residuals, cotangents[0].reshape(-1, width)
        return [jnp.dot(summing, cotangent.astype(summing.dtype), precision=lax.Precision.HIGHEST)]

    return repeated, linear_call(LinearMap(repeat, add_up, 1, (result,)), [summing], [tangents[0]])[0]
