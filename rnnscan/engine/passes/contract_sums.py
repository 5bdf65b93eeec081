"""Sums of a matrix times a vector, as products.

If something else reads the broadcast vector, XLA for a CPU writes it as a matrix, and takes 1.7 to 8 times as long to
multiply and sum as for the product. Otherwise it takes 0.8 to 4 times as long, from 1,024 elements on (jax 0.10.2).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.varying import explicit_spec
from rnnscan.engine.costs.costs import is_written
from rnnscan.engine.costs.machine import Machine
from rnnscan.engine.passes.sums import Sums
from rnnscan.ir.program import Atom, Equation, Program
from rnnscan.ir.rewrite import replace_equations
from rnnscan.ir.trace import in_place_of


def contract_sums(program: Program, machine: Machine) -> Program:
    """Compute `sum(k[:, None] * g, axis=0)` as `k @ g`, where the machine is estimated to take less time for it.

    The first is how JAX writes the cotangent of an outer product `k[:, None] * v`.
    """
    sums = Sums(program)

    def contracted(equation: Equation) -> Sequence[Equation] | None:
        product = sums.maker.get(equation.inputs[0]) if equation.name == "reduce_sum" else None
        if product is None or product.name != "mul" or not _may_contract(product, sums):
            return None
        left, right = product.inputs
        contraction = _contraction(equation, left, right, sums) or _contraction(equation, right, left, sums)
        if contraction is None:
            return None
        before, after = (machine.estimate(equations).nanoseconds for equations in ([product, equation], contraction))
        return contraction if after < before else None

    return replace_equations(program, contracted)


def _may_contract(product: Equation, sums: Sums) -> bool:
    (result,) = product.outputs
    # Numbers of 16 bits would be rounded at other places. A contracted axis must not be a sharded one.
    is_wide = jnp.issubdtype(result.dtype, jnp.floating) and result.dtype == at_least_float32(result.dtype)
    return is_wide and sums.is_read_once(result) and not any(explicit_spec(result.aval))


def _contraction(reduction: Equation, vector: Atom, matrix: Atom, sums: Sums) -> Sequence[Equation] | None:
    """The product of a vector and a matrix in place of a sum over their elementwise product; None if there is none.

    The batch axes of the matrix must come first, and those that are summed over must be next or last: XLA would
    transpose another matrix.
    """
    shape, summed = reduction.inputs[0].shape, [*reduction.params["axes"]]
    if matrix.shape != shape or not _is_in_memory(matrix, sums):
        return None
    source, axes = _unrepeated(vector, shape, sums.maker)
    batch = [place for place in axes if place not in summed]
    first, last = len(batch), len(shape)
    is_aligned = summed in ([*range(first, first + len(summed))], [*range(last - len(summed), last)])
    if not summed or not axes.keys() >= {*summed} or not is_aligned or batch != [*range(first)] or len(axes) == last:
        return None

    def contract(vector: Any, matrix: Any) -> Any:
        vector = lax.squeeze(vector, [axis for axis in range(vector.ndim) if axis not in axes.values()])
        of_vector = {place: axis for axis, place in enumerate(axes)}
        contracted, paired = ([of_vector[place] for place in places] for places in (summed, batch))
        numbers = (contracted, summed), (paired, batch)
        return lax.dot_general(vector, matrix, numbers, precision=lax.Precision.HIGHEST)

    return in_place_of(reduction, contract, [source, matrix])


def _is_in_memory(matrix: Atom, sums: Sums) -> bool:
    """Whether XLA writes a matrix anyway: an input, a result that it does not fuse, or one with several readers."""
    maker = sums.maker.get(matrix)
    if maker is None:
        return True
    return maker.name != "broadcast_in_dim" and (is_written(maker) or not sums.is_read_once(matrix))


def _unrepeated(atom: Atom, shape: Sequence[Any], maker: Mapping[Atom, Equation]) -> tuple[Atom, dict[int, int]]:
    """The value that an operand repeats, and its axis for each axis of the shape along which it is not repeated."""
    repetition, places = maker.get(atom), [*range(len(atom.shape))]
    if repetition is not None and repetition.name == "broadcast_in_dim":
        atom, places = repetition.inputs[0], [*repetition.params["broadcast_dimensions"]]
    return atom, {place: axis for axis, place in enumerate(places) if atom.shape[axis] == shape[place]}
