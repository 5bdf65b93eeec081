"""Which elements of its operands make elements of an equation's results NaN or inf.

NaN comes from NaN where an operand has one, else from inf. An element that depends on finite elements alone is made by
the equation itself. So a mask of -inf that makes no NaN is never to blame.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnscan.inside.nonfinite.patterns import Mask, Pattern, is_inexact, reduced_to
from rnnscan.ir.program import Constant, Equation


class Births(NamedTuple):
    """The elements that an equation makes not finite. The first kind that occurs is to blame.

    Attributes:
        from_finite: elements that depend on finite ones alone, or on NaN or +inf in a constant.
        from_infinite: NaN that depends on infinite elements.
        from_constant: elements that depend on -inf in a constant, such as a mask.
    """

    from_finite: Any
    from_infinite: Any
    from_constant: Any


def not_finite(value: Any) -> Mask:
    """The elements of an array that are NaN or inf; None: there are none."""
    mask = ~np.isfinite(value)
    return mask if mask.any() else None


def union(one: Mask, other: Mask) -> Mask:
    """The elements in either mask."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def dependence(
    equation: Equation, pattern: Pattern, operands: Sequence[Any], results: Sequence[Any], masks: Sequence[Mask]
) -> tuple[list[Mask], list[Births | None]]:
    """Follow elements of an equation's results to its operands.

    Args:
        equation: an equation without a body.
        pattern: which elements of its results read which of its operands.
        operands: its operands.
        results: its results.
        masks: for each result the elements to follow, which are not finite.

    Returns:
        For each operand the elements to blame; and for each result the elements that the equation makes.
    """
    floats = [place for place, atom in enumerate(equation.inputs) if is_inexact(atom)]
    arrays = {place: np.asarray(operands[place]) for place in floats}
    nans = pattern.readers(operands, [np.isnan(array) for array in arrays.values()])
    bad = pattern.readers(operands, [~np.isfinite(array) for array in arrays.values()])
    from_nan = [None if mask is None else mask & nan for mask, nan in zip(masks, nans, strict=True)]
    from_inf = [None if mask is None else mask & has & ~nan for mask, has, nan in zip(masks, bad, nans, strict=True)]
    reads_nan, reads_inf = pattern.read_by(operands, from_nan), pattern.read_by(operands, from_inf)
    blamed: list[Mask] = [None] * len(operands)
    given = given_mask = False
    for number, (place, array) in enumerate(arrays.items()):
        infinite = reads_inf[number] & np.isinf(array) & _passed_on(equation, array, results)
        of_nan = reads_nan[number] & np.isnan(array)
        if isinstance(equation.inputs[place], Constant):
            is_mask = infinite & (array.real == -np.inf)
            given, given_mask = given or bool((of_nan | (infinite & ~is_mask)).any()), given_mask or bool(is_mask.any())
        elif of_nan.any() or infinite.any():
            blamed[place] = of_nan | infinite
    births: list[Births | None] = [
        None
        if mask is None
        else Births(mask & (~has | given), infinite & np.isnan(np.asarray(result)), mask & given_mask)
        for mask, has, infinite, result in zip(masks, bad, from_inf, results, strict=True)
    ]
    return blamed, births


def _passed_on(equation: Equation, operand: Any, results: Sequence[Any]) -> Any:
    """The infinite elements of an operand that a maximum or minimum may pass on: those equal to its result."""
    if equation.name in ("max", "min"):
        result = np.asarray(results[0])
        return reduced_to(operand.shape, (operand == result) | np.isnan(result))
    if equation.name in ("reduce_max", "reduce_min"):
        result = np.expand_dims(np.asarray(results[0]), tuple(equation.params["axes"]))
        return (operand == result) | np.isnan(result)
    return True
