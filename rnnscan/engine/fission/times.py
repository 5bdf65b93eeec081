"""About how long an equation takes: for the choice between keeping its result and computing it again.

Only the order of the figures matters. They are of one core of a CPU, and were set by the training times of the uses in
`benchmarks/beyond` (docs/decisions.md, "Dear values of a cell without names are kept").
"""

from collections.abc import Set

from rnnscan.engine.fission.costs import operations_of
from rnnscan.ir.program import Equation, Value, nominal_size
from rnnscan.ir.traits import TRAITS, Kind


_NANOSECONDS_PER_EQUATION = 50.0
# A product of values that change from step to step is a call of its own. One with a matrix runs for many steps at once.
_PER_PRODUCT = 300.0
_PER_OPERATION, _PER_OPERATION_AT_ONCE = 0.020, 0.012
_PER_ELEMENT = 0.15
_PER_ELEMENT_OF = {
    **dict.fromkeys((name for name, traits in TRAITS.items() if traits.is_transcendental), 1.0),
    **dict.fromkeys(("pow", "erf_inv", "lgamma", "digamma"), 5.0),
    **dict.fromkeys(("gather", "scatter", "scatter-add", "dynamic_slice", "dynamic_update_slice", "rev"), 1.0),
    **dict.fromkeys(("threefry2x32", "random_bits", "random_split", "random_fold_in"), 20.0),
    **dict.fromkeys(("sort", "top_k", "cumsum", "cumprod", "cummax", "while", "scan", "cond"), 20.0),
}
_PER_KEPT_VALUE, _PER_KEPT_BYTE = 1500.0, 0.3


def nanoseconds(equation: Equation, fixed: Set[Value]) -> float:
    """About how long an equation takes at each step.

    Args:
        equation: the equation.
        fixed: values that are the same at every step.
    """
    name, made = equation.name, sum(nominal_size(value.shape) for value in equation.outputs)
    if equation.kind is Kind.PRODUCT and fixed.isdisjoint(equation.reads):
        return _PER_PRODUCT + _PER_OPERATION * operations_of(equation)
    if equation.kind is Kind.PRODUCT:
        return _PER_OPERATION_AT_ONCE * operations_of(equation)
    if name.startswith(("reduce_", "arg")):
        made = sum(nominal_size(atom.shape) for atom in equation.inputs)
    return _NANOSECONDS_PER_EQUATION + _PER_ELEMENT_OF.get(name, _PER_ELEMENT) * made


def nanoseconds_to_keep(nbytes: int) -> float:
    """The least time that keeping a value must spare at each step: 1.5 times that of writing and reading it."""
    return _PER_KEPT_VALUE + _PER_KEPT_BYTE * nbytes
