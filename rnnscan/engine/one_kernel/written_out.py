"""A step without calls of libraries: each that is small is written out."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from rnnscan._util.dtypes import at_least_float32
from rnnscan.engine.one_kernel import factors
from rnnscan.engine.one_kernel.derivative_rules import rules_of, with_written_rules
from rnnscan.engine.one_kernel.indexing import (
    computing_now,
    places_of,
    read_by_comparison,
    sort,
    taken,
    written_by_comparison,
)
from rnnscan.ir.bodies import with_bodies
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import needed
from rnnscan.ir.jaxprs import inner_bodies, is_jaxpr
from rnnscan.ir.program import Atom, Constant, Equation, Program, Value, concrete, read
from rnnscan.ir.rewrite import replace_inputs, replace_outputs
from rnnscan.ir.trace import Inliner, inlined, program_as_jaxpr, program_of
from rnnscan.ir.traits import Kind


# (equation, operands) -> results
Form = Callable[..., list[Any]]

# A matrix with more rows than that makes too many equations.
_MOST_ROWS = 8
# The elements of known indices, and of what they read or write.
_MOST_PLACES = 128
# More take longer than a scatter, about 250 ns (jaxlib 0.10.2 and 0.12.0): with 196, of 14 elements with 14 places, a
# training step takes 1.1 to 1.2 of plain's time, with 100 0.7 to 1.0 (jax 0.12).
_MOST_COMPARISONS = 128
# XLA fuses them with what reads them.
FUSED = (Kind.ELEMENTWISE, Kind.SAME, Kind.VIEW, Kind.PART, Kind.JOIN)
_SCATTERS = ("scatter", "scatter-add")
_FACTORS: Mapping[str, Form] = {
    "cholesky": factors.cholesky,
    "triangular_solve": factors.triangular_solve,
    "lu": factors.lu,
    "lu_pivots_to_permutation": factors.pivots_to_permutation,
    "qr": factors.qr,
}


def written_out(program: Program) -> Program:
    """The program without products of matrices, factors of small ones, and scatters, also those of derivatives."""
    writer = _Writer()
    for equation in _with_known_indices(program.equations):
        writer.write(equation)
    program = replace_outputs(program, writer.results)
    return replace(program, equations=tuple(needed(writer.equations, program.outputs)))


class _Writer:
    """Writes equations out.

    Attributes:
        equations: the equations so far.
        results: what takes the place of results.
        traced: the jaxprs of forms, by operation and operands, with the equation: what it holds keeps its identity.
    """

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.results: dict[Atom, Atom] = {}
        self.traced: dict[Hashable, tuple[Equation, Any]] = {}

    def write(self, equation: Equation, *, is_of_form: bool = False) -> None:
        """Add an equation, or those that take its place. A form's own rules have no calls."""
        equation = replace_inputs(equation, self.results)
        operands = [atom for atom in equation.inputs if isinstance(atom, Value)]
        branch, form = _branch_of_platform(equation), form_of(equation)
        traced = None if form is None else self._traced(equation, form, operands)
        if branch is not None:
            self._splice(equation, branch, equation.inputs[1:])
        elif traced is not None and _types(traced.out_avals) == _types(atom.aval for atom in equation.outputs):
            self._splice(equation, traced, operands)
        elif not is_of_form and rules_with_calls(equation):
            made, results = inlined(with_written_rules(equation, written_out), equation.inputs)
            self.equations.extend(replace(each, origin=equation.origin) for each in made)
            self.results.update(zip(equation.outputs, results, strict=True))
        else:
            if any(inner_bodies(equation.params)):
                params = jax.tree.map(_body, equation.params, is_leaf=is_jaxpr)
                equation = replace(equation, params=params)
            self.equations.append(equation)

    def _splice(self, equation: Equation, traced: Any, operands: Sequence[Atom]) -> None:
        """Add the equations of a jaxpr that computes an equation's results."""
        inliner = Inliner()
        results = inliner.inline(traced.jaxpr, [Constant(const) for const in traced.consts], operands)
        for each in _with_known_indices(inliner.equations):
            self.write(replace(each, origin=equation.origin), is_of_form=True)
        results = [self.results.get(result, result) for result in results]
        self.results.update(zip(equation.outputs, results, strict=True))

    def _traced(self, equation: Equation, form: Form, operands: Sequence[Value]) -> Any:
        def run(*values: Any) -> list[Any]:
            given = dict(zip(operands, values, strict=True))
            return form(equation, *(jnp.asarray(read(atom, given)) for atom in equation.inputs))

        places = {atom: place for place, atom in enumerate(operands)}  # An operand may be there twice.
        types = [(atom.aval, places[atom]) if isinstance(atom, Value) else id(atom.value) for atom in equation.inputs]
        key = equation.operation, *types
        if key not in self.traced:
            traced = equation.origin.run(jax.make_jaxpr(run), *(atom.aval for atom in operands))
            self.traced[key] = equation, traced
        return self.traced[key][1]


def _with_known_indices(equations: Sequence[Equation]) -> list[Equation]:
    """Equations whose reads and writes have their indices as constants, where these are known.

    One program computes all of them. Compiling one for each equation took 0.4 of the time to trace a filter.
    """
    known, indices = set[Atom](), dict[Atom, None]()
    for equation in equations:
        if all(atom in known or concrete(atom) is not None for atom in equation.inputs):
            few = not equation.effects and all(prod(atom.shape) <= _MOST_PLACES for atom in equation.outputs)
            known.update(equation.outputs if few else ())
        if equation.name in ("gather", *_SCATTERS) and equation.inputs[1] in known:
            indices[equation.inputs[1]] = None
    if not indices:
        return [*equations]
    with computing_now():
        numbers = jax.jit(core.jaxpr_as_fun(program_as_jaxpr(equations, [], [*indices])))()
    constants = {atom: Constant(np.asarray(number)) for atom, number in zip(indices, numbers, strict=True)}
    return [replace_inputs(equation, constants) for equation in equations]


def _types(avals: Iterable[Any]) -> list[Any]:
    """Types of results, to compare: what is written may lose a weak type."""
    return [(aval.shape, aval.dtype, getattr(aval, "weak_type", False)) for aval in avals]


def rules_with_calls(equation: Equation) -> list[Program]:
    """What the derivative rules of an equation compute, if something in it is written out; else nothing."""
    rules = rules_of(equation)
    return rules if any(form_of(each) for rule in rules for each in with_bodies(rule.equations)) else []


def form_of(equation: Equation) -> Form | None:
    """How an equation is written out; None if it stays."""
    if contraction_of(equation) is not None:
        return product if equation.params.get("out_sharding") is None else None
    if equation.name in ("gather", *_SCATTERS):
        return _by_slices(equation) or _by_comparison(equation)
    if equation.name == "sort":
        return sort if _is_short_sort(equation) else None
    return _FACTORS[equation.name] if equation.name in _FACTORS and _is_small_matrix(equation) else None


def _is_small_matrix(equation: Equation) -> bool:
    if equation.name == "lu_pivots_to_permutation":
        return bool(equation.params["permutation_size"] <= _MOST_ROWS)
    sizes = [size for atom in equation.inputs for size in atom.shape[-2:]]
    is_small = min(equation.inputs[0].shape[-2:]) <= _MOST_ROWS and 0 < min(sizes) <= max(sizes) <= 2 * _MOST_ROWS
    has_signs = jnp.issubdtype(equation.outputs[0].dtype, jnp.floating)  # Complex numbers have phases.
    return is_small and bool(has_signs) and not equation.params.get("pivoting")


def _is_short_sort(equation: Equation) -> bool:
    shape, keys = equation.inputs[0].shape, equation.params["num_keys"]
    is_real = all(jnp.issubdtype(atom.dtype, jnp.number) for atom in equation.inputs)
    is_complex = jnp.issubdtype(equation.inputs[0].dtype, jnp.complexfloating)
    return keys == 1 and is_real and not is_complex and shape[equation.params["dimension"]] <= _MOST_ROWS


def _by_slices(equation: Equation) -> Form | None:
    """How a read or an overwriting write by known indices is written out, if it is small."""
    if equation.name not in ("gather", "scatter"):
        return None
    indices = concrete(equation.inputs[1])
    elements = sum(prod(atom.shape) for atom in (*equation.inputs, *equation.outputs))
    dtypes = {equation.inputs[0].dtype, equation.inputs[-1].dtype, equation.outputs[0].dtype}
    if indices is None or elements > _MOST_PLACES or (equation.name == "scatter" and len(dtypes) > 1):
        return None
    fill = equation.params.get("fill_value")
    if fill is None:
        fill = jnp.nan if jnp.issubdtype(equation.outputs[0].dtype, jnp.inexact) else None
    places = places_of(equation, indices)
    if fill is None and (places < 0).any():
        return None  # JAX's fill values for integers are its own.
    return lambda _, first, indices, *others: [taken([first, *others], places, fill or 0)]


def _by_comparison(equation: Equation) -> Form | None:
    """How a read or a write by computed indices is written out, if it is small.

    By one index, XLA reads and writes a slice within the kernel.
    """
    operand, indices, *updates = equation.inputs
    is_one_index = prod(indices.shape[:-1]) <= 1
    (moved,) = updates or equation.outputs  # What is written or read.
    comparisons = prod(moved.shape) * prod(operand.shape)
    if is_one_index or comparisons > _MOST_COMPARISONS or moved.dtype != operand.dtype:
        return None
    if equation.name != "gather":
        return written_by_comparison
    return read_by_comparison if jnp.issubdtype(operand.dtype, jnp.inexact) else None


def _branch_of_platform(equation: Equation) -> Any:
    """The branch of a `jax.lax.platform_dependent` that a CPU takes; None for other equations."""
    platforms = equation.params.get("branches_platforms") if equation.name == "cond" else None
    if platforms is None:
        return None
    mine = (at for at, names in enumerate(platforms) if names is None or "cpu" in names)
    return equation.params["branches"][next(mine)]


def _body(param: Any) -> Any:
    """A parameter of an equation; if it is the body of a loop, a branch or a call, written out."""
    if not isinstance(param, core.ClosedJaxpr) or param.effects:
        return param
    program = written_out(program_of(param))
    written = program_as_jaxpr(program.equations, program.known, program.stacked)
    return written if _types(written.out_avals) == _types(param.out_avals) else param


def product(equation: Equation, left: Any, right: Any) -> list[Any]:
    """A `dot_general`: the sum over k of `left[b, m, k] * right[b, n, k]`, with the axes of the equation.

    Floats are added up in at least float32, as XLA adds them up.
    """
    contraction, dtype = contraction_of(equation), equation.outputs[0].dtype
    assert contraction is not None
    shape = equation.outputs[0].shape
    contracted = [left.shape[axis] for axis in contraction.contracted[0]]
    wide = at_least_float32(dtype) if jnp.issubdtype(dtype, jnp.floating) else dtype
    if jnp.issubdtype(dtype, jnp.bool_):
        wide = jnp.int32  # A truth value says whether one of the products is true.
    factors = []
    for side, operand in enumerate((left, right)):
        summed = {axis: len(shape) + place for place, axis in enumerate(contraction.contracted[side])}
        places = contraction.in_result(side) | summed  # Ascending.
        ordered = lax.transpose(operand.astype(wide), [*places])
        factors.append(lax.broadcast_in_dim(ordered, (*shape, *contracted), [*places.values()]))
    total = lax.reduce_sum(lax.mul(*factors), range(len(shape), len(shape) + len(contracted)))
    return [total.astype(dtype)]
