"""A step without calls of libraries: each that is small is written out."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from rnnscan._util.dtypes import at_least_float32
from rnnscan.engine.one_kernel import factors
from rnnscan.engine.one_kernel.indexing import (
    Comparison,
    read_by_comparison,
    sort,
    written_by_comparison,
)
from rnnscan.ir.bodies import with_bodies
from rnnscan.ir.contraction import contraction_of
from rnnscan.ir.dataflow import needed
from rnnscan.ir.jaxprs import inner_bodies, is_jaxpr
from rnnscan.ir.program import Atom, Constant, Equation, Program, Value, read
from rnnscan.ir.rewrite import replace_inputs, replace_outputs
from rnnscan.ir.trace import Inliner, program_as_jaxpr, program_of
from rnnscan.ir.traits import Kind


# (equation, operands) -> results
Form = Callable[..., list[Any]]

# A matrix with more rows than that makes too many equations.
_MOST_ROWS = 8
# Of the elements that are read or written with the places of what they are read from.
_MOST_COMPARISONS = 512
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
    """The program without products of matrices, factors of small ones, and scatters; one without calls stays as it is.

    Written out, the products of an LSTM of 8 units with vectors take 1.3 of the time of XLA's own loops.
    """
    if not any(map(is_call, with_bodies(program.equations))):
        return program
    if program not in _written:
        _written[program] = _written_out(program)
    return _written[program]


def _written_out(program: Program) -> Program:
    writer = _Writer()
    for equation in program.equations:
        writer.write(equation)
    program = replace_outputs(program, writer.results)
    return replace(program, equations=tuple(needed(writer.equations, program.outputs)))


# A program that is planned is written out too: no written one holds it.
_written: WeakKeyDictionary[Program, Program] = WeakKeyDictionary()


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

    def write(self, equation: Equation) -> None:
        """Add an equation, or those that take its place."""
        equation = replace_inputs(equation, self.results)
        operands = [atom for atom in equation.inputs if isinstance(atom, Value)]
        branch, form = _branch_of_platform(equation), form_of(equation)
        traced = None if form is None else self._traced(equation, form, operands)
        if branch is not None:
            self._splice(equation, branch, equation.inputs[1:])
        elif traced is not None and _types(traced.out_avals) == _types(atom.aval for atom in equation.outputs):
            self._splice(equation, traced, operands)
        else:
            if any(inner_bodies(equation.params)):
                params = jax.tree.map(_body, equation.params, is_leaf=is_jaxpr)
                equation = replace(equation, params=params)
            self.equations.append(equation)

    def _splice(self, equation: Equation, traced: Any, operands: Sequence[Atom]) -> None:
        """Add the equations of a jaxpr that computes an equation's results."""
        inliner = Inliner()
        results = inliner.inline(traced.jaxpr, [Constant(const) for const in traced.consts], operands)
        for each in inliner.equations:
            self.write(replace(each, origin=equation.origin))
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


def _types(avals: Iterable[Any]) -> list[Any]:
    """Types of results, to compare: what is written may lose a weak type."""
    return [(aval.shape, aval.dtype, getattr(aval, "weak_type", False)) for aval in avals]


def is_call(equation: Equation) -> bool:
    """Whether XLA calls a library for an equation that can be written out.

    A product with a vector is a loop of XLA's own, as one that sums nothing, and a read by index is one too, other than
    its derivative.
    """
    contraction = contraction_of(equation)
    if contraction is None:
        return form_of(equation) is not None
    left, right = equation.inputs
    sides = zip((left, right, left), (*contraction.free, contraction.contracted[0]), strict=True)
    return 1 not in [prod(atom.shape[axis] for axis in axes) for atom, axes in sides]


def form_of(equation: Equation) -> Form | None:
    """How an equation is written out; None if it stays."""
    if contraction_of(equation) is not None:
        return product if equation.params.get("out_sharding") is None else None
    if equation.name in ("gather", *_SCATTERS):
        return _by_comparison(equation)
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


def _by_comparison(equation: Equation) -> Form | None:
    """How a read or a write by computed indices is written out, if it is small.

    By one index, XLA reads and writes a slice within the kernel.
    """
    operand, indices, *updates = equation.inputs
    (moved,) = updates or equation.outputs  # What is written or read.
    is_one_index = prod(indices.shape[:-1]) <= 1
    if equation.name == "scatter" and equation.params["update_jaxpr"] is not None:
        return None  # `x.at[i].apply`, which overwrites nothing.
    if is_one_index or moved.dtype != operand.dtype or Comparison.of(equation).comparisons > _MOST_COMPARISONS:
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
    branch = next(mine, None)
    return None if branch is None else equation.params["branches"][branch]


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
