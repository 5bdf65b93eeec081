"""A step with its invariant work before the loop, for TPUs, where a step's elementwise work costs most.

Autodiff of `lax.scan` repeats, at every step, work that depends on closed-over arrays only. A bias is the common case:
its gradient is a sum over the rows at every step, which a TPU does slowly, because one instruction works on many rows
together. Here biases, and other vectors that are repeated for the rows, are repeated before the loop, and the sum over
the rows is a product with a row of ones, which the matrix unit does.

By the estimate of the TPU's compiler, a training step of an LSTM with 256 units, with `jax.checkpoint` on the step,
then takes 0.64 of the cycles of plain autodiff, instead of 0.85 (docs/accelerators.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import at_least_float32, promoted
from rnnscan._util.step_wrappers import Step
from rnnscan.engine.costs.costs import unbatchable
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.ir.dataflow import depending, determined, needed, partition
from rnnscan.ir.program import Atom, Equation, Value, evaluate, inputs_of, outputs_of, read, values_of
from rnnscan.ir.trace import Inliner
from rnnscan.ir.traits import Kind


# The rows of a tile. A sum over rows is a product that makes so many rows, of which one is not zero.
_TILE = 8
# They take an operand whose axes of size 1 are repeated.
_REPEATING = frozenset({"add", "sub", "mul", "div", "max", "min"})
# They change a product of the input, and its size little.
_ADDING = frozenset({"add", "add_any", "sub", "convert_element_type"})
_RESHAPING = frozenset({"broadcast_in_dim", "reshape", "squeeze", "slice"})


def hoist(step: Step, carry: Any, x: Any) -> "HoistedStep":
    """The step with its invariant work done now.

    Args:
        step: the step. Arrays that it closes over get gradients.
        carry: the carry, or its types.
        x: the types of a step's input.

    Returns:
        `(carry, x) -> (carry, y)`, to be called in loops.
    """
    traced, results = jax.make_jaxpr(step, return_shape=True)(carry, x)
    inliner = Inliner(whole=("checkpoint", "remat2"))
    constants, inputs = ([Value(var.aval) for var in group] for group in (traced.jaxpr.constvars, traced.jaxpr.invars))
    outputs = inliner.inline(traced.jaxpr, constants, inputs)
    hoisted = _Hoisted.of(inliner.equations, outputs, dict(zip(constants, traced.consts, strict=True)))
    first_x = len(jax.tree.leaves(carry))
    return HoistedStep(hoisted, tuple(inputs[:first_x]), tuple(inputs[first_x:]), jax.tree.structure(results))


@dataclass(frozen=True, eq=False)
class HoistedStep:
    """A step whose invariant work is done.

    Attributes:
        hoisted: the rest of its work.
        carry, x: its inputs.
        results: the structure of its results.
    """

    hoisted: "_Hoisted"
    carry: tuple[Value, ...]
    x: tuple[Value, ...]
    results: Any

    def __call__(self, carry: Any, x: Any) -> Any:
        """The new carry and y."""
        return self._run(self.hoisted, self.x, carry, x)

    def of_segment(self, xs: Any) -> tuple[Step, Any]:
        """The step with its products of inputs batched over the steps of a segment, and its inputs.

        On a TPU each operation of a small step costs about as much as a large one, so fewer of them are faster. The
        products lie in memory while the segment runs.

        Args:
            xs: the inputs of the segment's steps.
        """
        rest, equations, products = self.hoisted.without_products_of(self.x)
        stacks = jax.tree.leaves(xs)
        if not products:
            return self, xs

        def at_step(leaves: list[Any]) -> list[Any]:
            values = self.hoisted.values_at(dict(zip(self.x, leaves, strict=True)))
            evaluate(equations, values)
            return [values[value] for value in products]

        def step(carry: Any, step_xs: list[Any]) -> Any:
            return self._run(rest, (*self.x, *products), carry, step_xs)

        return step, [*stacks, *map(_row_by_row, jax.vmap(at_step)(stacks))]

    def _run(self, hoisted: "_Hoisted", inputs: Sequence[Value], carry: Any, x: Any) -> Any:
        leaves = [*jax.tree.leaves(carry), *jax.tree.leaves(x)]
        outputs = hoisted.run(dict(zip([*self.carry, *inputs], leaves, strict=True)))
        return jax.tree.unflatten(self.results, outputs)


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
        # A cast to 16 bits stays in the loop, which adds up the gradient of its operand. XLA moves it out. A vector
        # that is repeated for the rows has its gradient added up in float32 anyway.
        repeated = _only_repeated(equations, outputs)
        kept = [e for e in equations if not _narrows(e) or e.outputs[0] in repeated]
        known = determined(kept, constants)
        # What follows from no array is a constant, which each step makes faster than it reads it.
        fixed = known & depending(equations, constants)
        invariant, varying = partition(equations, fixed)
        values = dict(constants)
        evaluate(needed([e for e in equations if known.issuperset(e.outputs)], outputs_of(invariant)), values)
        values = {value: leaf for value, leaf in values.items() if value in fixed or value in constants}
        hoisted = _Hoisted([], outputs, values)
        maker = {output: equation for equation in invariant for output in equation.outputs}
        hoisted._repeat(varying, fixed, maker)
        wanted = {*inputs_of(hoisted.equations), *values_of(outputs)}
        hoisted.values = {
            value: leaf if value in hoisted.rows else _widened(leaf)
            for value, leaf in values.items()
            if value in wanted
        }
        return hoisted

    def run(self, inputs: dict[Value, Any]) -> list[Any]:
        """The outputs of a step."""
        values = self.values_at(inputs)
        evaluate(self.equations, values)
        return [read(atom, values) for atom in self.outputs]

    def values_at(self, inputs: dict[Value, Any]) -> dict[Value, Any]:
        """The values of a step that no equation makes."""
        values = {value: _narrowed(leaf, value.dtype) for value, leaf in self.values.items()} | inputs
        for value, rows in self.rows.items():
            values[value] = _with_gradient_of(*rows, values[value])
        return values

    def without_products_of(self, x: Sequence[Value]) -> tuple["_Hoisted", list[Equation], list[Value]]:
        """The step without its products of inputs and fixed values, and without the terms added to them.

        Args:
            x: the inputs.

        Returns:
            The rest of the step, the equations that make these values, and the values.
        """
        batchable = [equation for equation in self.equations if not unbatchable(equation)]
        ahead = determined(batchable, [*self.values, *x]) & depending(batchable, x)
        products = [e for e in batchable if e.kind is Kind.PRODUCT and ahead.issuperset(e.outputs)]
        hoisted = {*outputs_of(products)}
        for equation in batchable:
            adds = equation.name in _ADDING and ahead.issuperset(equation.outputs)
            if adds and not hoisted.isdisjoint(equation.reads):
                hoisted.update(equation.outputs)
        remaining = [equation for equation in self.equations if hoisted.isdisjoint(equation.outputs)]
        read_later = {*inputs_of(remaining), *values_of(self.outputs)}
        stacked = [value for value in outputs_of(self.equations) if value in hoisted and value in read_later]
        rest = needed([e for e in self.equations if hoisted.isdisjoint(e.outputs)], self.outputs)
        return replace(self, equations=rest), needed(self.equations, stacked), stacked

    def _repeat(self, equations: Sequence[Equation], fixed: set[Value], maker: Mapping[Value, Equation]) -> None:
        """Repeat the invariant vectors that equations repeat for their rows."""
        repeated: dict[tuple[Value, tuple[int, ...]], Value] = {}
        for equation in equations:
            shape = equation.outputs[0].shape
            operands = list(equation.inputs)
            for position, atom in enumerate(operands):
                if isinstance(atom, Value) and atom in fixed and _is_repeated(equation, atom):
                    if (atom, shape) not in repeated:
                        repeated[atom, shape] = self._repeated(atom, shape, self._wide(atom, maker))
                    operands[position] = repeated[atom, shape]
            self.equations.append(replace(equation, inputs=tuple(operands)))

    def _wide(self, vector: Value, maker: Mapping[Value, Equation]) -> Any:
        """A vector in at least float32, from before it was cast to 16 bits: its gradient is rounded once."""
        chain, first = [], vector
        while first in maker and _passes_on(maker[first]):
            chain.append(maker[first])
            (first,) = chain[-1].reads
        if not any(map(_narrows, chain)):
            chain, first = [], vector
        wide = self.values[first].astype(at_least_float32(first.dtype))
        for equation in reversed(chain):
            wide = wide if _casts_floats(equation) else equation.evaluate(wide)[0]
        return wide

    def _repeated(self, vector: Value, shape: tuple[int, ...], wide: Any) -> Value:
        leaf = self.values[vector]
        value = Value(jax.typeof(jnp.broadcast_to(leaf, shape)))
        # The rule of `_with_gradient_of` drops their tangent, and a derivative of the derivative reads it: JAX
        # evaluates the known part of a loop without its rules.
        self.values[value] = jnp.broadcast_to(leaf, shape)
        # Sums over many steps are made in at least float32.
        wide = wide.reshape(1, -1)
        summing = lax.broadcasted_iota(jnp.int32, (_TILE, prod(shape) // wide.shape[1]), 0) == 0
        self.rows[value] = jnp.broadcast_to(wide, (_TILE, wide.shape[1])), summing.astype(wide.dtype)
        return value


def _row_by_row(stack: Any) -> Any:
    """A stack that a loop can cut steps off without a copy: XLA would lay out the steps of a row side by side."""
    rows = lax.optimization_barrier(stack.reshape(-1, stack.shape[-1])) if stack.ndim > 2 else stack
    return rows.reshape(stack.shape)


def _only_repeated(equations: Sequence[Equation], outputs: Sequence[Atom]) -> set[Value]:
    """The values that nothing reads but operations that repeat them for several rows."""
    readers: dict[Value, list[Equation]] = {value: [] for value in [*inputs_of(equations), *outputs_of(equations)]}
    for equation in equations:
        for value in equation.reads:
            readers[value].append(equation)
    repeated = set[Value]()
    for equation in reversed(equations):
        for value in equation.outputs:
            only = all(_is_repeated(e, value) or (_passes_on(e) and e.outputs[0] in repeated) for e in readers[value])
            if only and value not in outputs:
                repeated.add(value)
    return repeated


def _passes_on(equation: Equation) -> bool:
    """Whether an equation reshapes, cuts or casts floats."""
    return equation.name in _RESHAPING or _casts_floats(equation)


def _casts_floats(equation: Equation) -> bool:
    is_cast = equation.name == "convert_element_type"
    return is_cast and all(
        jnp.issubdtype(atom.dtype, jnp.floating) for atom in (equation.inputs[0], equation.outputs[0])
    )


def _narrows(equation: Equation) -> bool:
    """Whether an equation casts floats to 16 bits."""
    if not _casts_floats(equation):
        return False
    old, new = equation.inputs[0].dtype, equation.outputs[0].dtype
    return promoted(old, new) != new


def _widened(leaf: Any) -> Any:
    """An array that a loop reads, so that the gradients of all steps are added up in at least float32."""
    dtype = jnp.result_type(leaf)
    return leaf.astype(at_least_float32(dtype)) if jnp.issubdtype(dtype, jnp.floating) else leaf


def _narrowed(leaf: Any, dtype: Any) -> Any:
    return leaf if jnp.result_type(leaf) == dtype else leaf.astype(dtype)


def _is_repeated(equation: Equation, operand: Value) -> bool:
    """Whether an equation repeats an invariant vector for several rows."""
    shape, operand_shape = equation.outputs[0].shape, operand.shape
    sizes_known = all(isinstance(size, int) for size in shape)
    if equation.name not in _REPEATING or len(operand_shape) != len(shape) or not sizes_known:
        return False
    leading = next((axis for axis, size in enumerate(operand_shape) if size != 1), len(operand_shape))
    repeats_leading_only = leading < len(operand_shape) and operand_shape[leading:] == shape[leading:]
    return repeats_leading_only and prod(shape[:leading]) > 1 and jnp.issubdtype(operand.dtype, jnp.floating)


@jax.custom_jvp
def _with_gradient_of(rows: Any, summing: Any, repeated: Any) -> Any:
    """Values that were repeated from the first of some rows, with a gradient of that row."""
    return repeated


@_with_gradient_of.defjvp
def _differentiate(primals: tuple[Any, Any, Any], tangents: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    rows, summing, repeated = primals
    result, width = jax.typeof(repeated), rows.shape[1]
    # A cotangent of 16 bits needs one pass of the matrix unit. One of 32 bits would be rounded to 16 by default.
    precision = lax.Precision.DEFAULT if jnp.finfo(result.dtype).bits == 16 else lax.Precision.HIGHEST

    def product(summing: Any, direction: Any) -> Any:
        """The same by a product with zeros and ones. Its transpose is a product that sums over the rows."""
        sums = lax.dot_general(summing, direction, (((0,), (0,)), ((), ())), precision=precision)
        return sums.astype(result.dtype).reshape(result.shape)

    def repeat(_: Any, direction: Any) -> Any:
        first = direction[:1].astype(result.dtype)
        return jnp.broadcast_to(first, (result.size // width, width)).reshape(result.shape)

    return repeated, differentiate_as(product, repeat)(summing, tangents[0])
