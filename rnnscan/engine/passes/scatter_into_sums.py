"""Scatter into a sum, and not into zeros to add."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan.engine.passes.sums import Sums
from rnnscan.ir.program import Atom, Equation, Program, Value, inputs_of, is_zero, scatters_into_zeros
from rnnscan.ir.rewrite import replace_equations
from rnnscan.ir.trace import in_place_of


def scatter_slices(program: Program) -> Program:
    """Compute `dynamic_update_slice(0, update, starts)` as `scatter_add(0, starts, update)`.

    The first is how JAX writes the cotangent of a table of which one row or column is read by a number. A scatter is
    added to a sum without a table of zeros.
    """
    sums = Sums(program)
    terms = {*program.summed, *inputs_of(each for each in sums.equations if each.traits.is_linear)}
    return replace_equations(program, lambda each: _scatter(each) if _writes_term(each, sums, terms) else None)


def scatter_into_sums(program: Program) -> Program:
    """Compute `a + scatter_add(0, indices, updates)` as `scatter_add(a, indices, updates)`.

    The first is how JAX writes the cotangent of a table whose rows are read by index. A loop would write and add a
    whole table at each step, where the second changes some rows of it in place. Sums over steps stay: their scatters
    are one, after the loop.
    """
    sums = Sums(program)
    over_steps = {term for atom in program.summed for term in sums.terms(atom)}

    def rewrite(terms: list[Atom]) -> tuple[Sequence[Equation], Sequence[Atom]]:
        scatters: list[Equation] = []
        scattered = [term for term in terms if term not in over_steps and _adds_to_zeros(sums, term)]
        remaining = [term for term in terms if term not in scattered]
        for term in scattered:
            total = remaining[0] if remaining else None
            if not isinstance(total, Value) or (total.shape, total.dtype) != (term.shape, term.dtype):
                return (), ()
            scatter = sums.maker[term]
            result = Value(scatter.outputs[0].aval)
            scatters.append(replace(scatter, inputs=(total, *scatter.inputs[1:]), outputs=(result,)))
            remaining[0] = result
        return scatters, remaining

    return sums.rewritten(rewrite)


def _adds_to_zeros(sums: Sums, term: Atom) -> bool:
    """Whether a term is scattered into zeros, and has no other reader."""
    return sums.is_read_once(term) and scatters_into_zeros(sums.maker.get(term), sums.maker)


def _writes_term(equation: Equation, sums: Sums, terms: set[Atom]) -> bool:
    """Whether an equation writes a slice of zeros that is a term of a sum, or leads to one, and nothing else."""
    if equation.name != "dynamic_update_slice" or not is_zero(equation.inputs[0], sums.maker):
        return False
    (result,) = equation.outputs
    is_table = result.shape and jnp.issubdtype(result.dtype, jnp.inexact)
    return bool(is_table) and result in terms and sums.is_read_once(result)


def _scatter(equation: Equation) -> Sequence[Equation]:
    def scatter(zeros: Any, update: Any, *starts: Any) -> Any:
        axes = tuple(range(zeros.ndim))
        numbers = lax.ScatterDimensionNumbers(axes, inserted_window_dims=(), scatter_dims_to_operand_dims=axes)
        indices = lax.concatenate([lax.expand_dims(start, (0,)) for start in starts], 0)
        return lax.scatter_add(zeros, indices, update, numbers, mode=lax.GatherScatterMode.CLIP)

    return in_place_of(equation, scatter, equation.inputs)
