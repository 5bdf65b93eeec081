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
    arrays = [np.asarray(operands[place]) for place in floats]
    of_nan = [np.isnan(array) for array in arrays]
    from_nan, others = _parted(masks, pattern.readers(operands, of_nan))
    reads = [np.False_] * len(floats) if _is_empty(from_nan) else pattern.read_by(operands, from_nan)
    to_blame = [read & nan for read, nan in zip(reads, of_nan, strict=True)]
    births: list[Births | None] = [None] * len(results)
    from_inf: list[Mask] = [None] * len(results)
    if not _is_empty(others):  # Elements that are not NaN because an operand is.
        of_inf = [np.isinf(array) for array in arrays]
        from_inf, own = _parted(others, pattern.readers(operands, of_inf))
        reads = pattern.read_by(operands, from_inf)
        for number, (read, inf) in enumerate(zip(reads, of_inf, strict=True)):
            to_blame[number] = to_blame[number] | (read & inf & _passed_on(equation, arrays[number], results))
        nothing = np.False_
        births = [
            None
            if mask is None and infinite is None
            else Births(
                nothing if mask is None else mask,
                nothing if infinite is None else infinite & np.isnan(np.asarray(result)),
                nothing,
            )
            for mask, infinite, result in zip(own, from_inf, results, strict=True)
        ]
    blamed: list[Mask] = [None] * len(operands)
    for place, array, mask in zip(floats, arrays, to_blame, strict=True):
        if mask.any():
            if isinstance(equation.inputs[place], Constant):
                is_of_mask = not (mask & ~(array.real == -np.inf)).any()
                births = [_with_constant(each, mask, is_of_mask) for each, mask in zip(births, masks, strict=True)]
            else:
                blamed[place] = mask
    return blamed, births


def _parted(masks: Sequence[Mask], readers: Sequence[Any]) -> tuple[list[Mask], list[Mask]]:
    """The elements of masks that read some elements, and the others."""
    pairs = [
        (None, None) if mask is None else (mask & read, mask & ~read) for mask, read in zip(masks, readers, strict=True)
    ]
    parts = [[None if mask is None or not mask.any() else mask for mask in part] for part in zip(*pairs, strict=True)]
    return parts[0], parts[1]


def _is_empty(masks: Sequence[Mask]) -> bool:
    return all(mask is None for mask in masks)


def _with_constant(births: Births | None, mask: Mask, is_of_mask: bool) -> Births | None:
    """Births, and elements that depend on a constant, which is a mask of -inf or has other values."""
    if mask is None:
        return births
    births = births or Births(np.False_, np.False_, np.False_)
    if is_of_mask:
        return births._replace(from_constant=births.from_constant | mask)
    return births._replace(from_finite=births.from_finite | mask)


def _passed_on(equation: Equation, operand: Any, results: Sequence[Any]) -> Any:
    """The infinite elements of an operand that a maximum or minimum may pass on: those equal to its result."""
    if equation.name in ("max", "min"):
        result = np.asarray(results[0])
        return reduced_to(operand.shape, (operand == result) | np.isnan(result))
    if equation.name in ("reduce_max", "reduce_min"):
        result = np.expand_dims(np.asarray(results[0]), tuple(equation.params["axes"]))
        return (operand == result) | np.isnan(result)
    return True
