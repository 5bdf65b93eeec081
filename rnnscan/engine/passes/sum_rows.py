"""Sums over rows as products with a row of ones, for TPUs, whose matrix unit adds up rows.

The gradient of a bias is a sum over the rows at every step. One instruction of a TPU works on 8 rows together, so a sum
of these is slow: that of a bias is 27 % of a training step of a small LSTM under `jax.checkpoint`, by the estimate
of the TPU's compiler.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import at_least_float32
from rnnscan.engine.analysis.linear_sums import ends_of_sum
from rnnscan.ir.dataflow import depending
from rnnscan.ir.program import Equation, Program, nominal_size
from rnnscan.ir.rewrite import replace_equations
from rnnscan.ir.trace import in_place_of


# The rows of a tile, which a product makes in any case. One of them is the sum.
_TILE = 8


def sum_rows(program: Program) -> Program:
    """Compute `sum(x, axis=0)` as the first row of `[1; 0] @ x`, where it is summed over the steps too."""
    varying, maker = depending(program.equations, [*program.known, *program.carry]), program.maker
    sums = {equation.outputs[0] for equation in program.equations if _sums_rows(equation)}
    ends = (ends_of_sum(atom, maker, varying.__contains__, sums) for atom in program.summed)
    chosen = sums.intersection(chain.from_iterable(ends))

    def by_product(equation: Equation) -> Sequence[Equation] | None:
        if chosen.isdisjoint(equation.outputs):
            return None
        return in_place_of(equation, partial(_product, shape=equation.outputs[0].shape), equation.inputs)

    return replace_equations(program, by_product)


def _sums_rows(equation: Equation) -> bool:
    if equation.name != "reduce_sum" or not jnp.issubdtype(equation.outputs[0].dtype, jnp.floating):
        return False
    axes, shape = equation.params["axes"], equation.inputs[0].shape
    rows, columns = (nominal_size(sizes) for sizes in (shape[: len(axes)], shape[len(axes) :]))
    return axes == (*range(len(axes)),) and rows > 1 and columns > 1


def _product(x: Any, shape: tuple[int, ...]) -> Any:
    rows = x.reshape(-1, prod(shape))
    ones = (lax.broadcasted_iota(jnp.int32, (_TILE, rows.shape[0]), 0) == 0).astype(x.dtype)
    # Numbers of 16 bits need one pass of the matrix unit. Those of 32 bits would be rounded to 16 by default.
    precision = lax.Precision.DEFAULT if jnp.finfo(x.dtype).bits == 16 else lax.Precision.HIGHEST
    sums = lax.dot(ones, rows, precision=precision, preferred_element_type=at_least_float32(x.dtype))
    return sums[0].reshape(shape).astype(x.dtype)
