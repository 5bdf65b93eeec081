"""About how long an equation takes: for the choice between keeping its result and computing it again.

Only the order of the figures matters. Those of functions and of products with a matrix were measured on a CPU
(docs/decisions.md, "A call costs what is in it"); the others were set by the training times of the uses in
`benchmarks/beyond` ("Expensive values of a cell without names are kept").
"""

from collections.abc import Set

from rnnscan.engine.costs.costs import operations_of
from rnnscan.ir.bodies import bodies_of
from rnnscan.ir.program import Equation, Value, nominal_size
from rnnscan.ir.traits import TRAITS, Kind


_NANOSECONDS_PER_EQUATION = 50.0
# A product of values that change from step to step is a call of its own. One with a matrix runs for many steps at once.
_PER_PRODUCT = 300.0
_PER_OPERATION, _PER_OPERATION_AT_ONCE = 0.020, 0.007
_PER_ELEMENT = 0.15
_PER_ELEMENT_OF = {
    **dict.fromkeys((name for name, traits in TRAITS.items() if traits.is_transcendental), 1.0),
    **dict.fromkeys(("tanh", "logistic", "exp", "log", "erf", "sqrt", "rsqrt"), 0.5),
    **dict.fromkeys(("sin", "cos"), 2.0),
    **dict.fromkeys(("pow", "cbrt", "erf_inv", "lgamma", "digamma"), 5.0),
    **dict.fromkeys(("gather", "scatter", "scatter-add", "dynamic_slice", "dynamic_update_slice", "rev"), 1.0),
    **dict.fromkeys(("threefry2x32", "random_bits", "random_split", "random_fold_in"), 20.0),
    **dict.fromkeys(("sort", "top_k", "cumsum", "cumprod", "cummax", "while"), 20.0),
}
_PER_KEPT_VALUE, _PER_KEPT_BYTE = 700.0, 0.3
# A kernel of its own in a loop: XLA calls it once more, and the value goes through the first cache.
_PER_WRITTEN_VALUE, _PER_WRITTEN_BYTE = 250.0, 0.1


def nanoseconds(equation: Equation, fixed: Set[Value]) -> float:
    """About how long an equation takes at each step; one with a body as long as what is in it.

    Of branches the longest counts. How often a `while` runs is not known.

    Args:
        equation: the equation.
        fixed: values that are the same at every step.
    """
    name, made = equation.name, sum(nominal_size(value.shape) for value in equation.outputs)
    if equation.kind is Kind.PRODUCT and fixed.isdisjoint(equation.reads):
        return _PER_PRODUCT + _PER_OPERATION * operations_of(equation)
    if equation.kind is Kind.PRODUCT:
        return _PER_OPERATION_AT_ONCE * operations_of(equation)
    bodies = [sum(nanoseconds(inner, frozenset()) for inner in body) for body in bodies_of(equation)]
    if bodies and name != "while":
        return max(bodies) * int(equation.params.get("length", 1))
    if name.startswith(("reduce_", "arg")):
        made = sum(nominal_size(atom.shape) for atom in equation.inputs)
    return _NANOSECONDS_PER_EQUATION + _PER_ELEMENT_OF.get(name, _PER_ELEMENT) * made + sum(bodies)


def nanoseconds_to_keep(nbytes: int) -> float:
    """The least time that keeping a value must spare at each step: 1.5 times that of writing and reading it."""
    return _PER_KEPT_VALUE + _PER_KEPT_BYTE * nbytes


def nanoseconds_to_write(nbytes: int) -> float:
    """About how long a loop takes to write a value for readers in the same step, and to read it."""
    return _PER_WRITTEN_VALUE + _PER_WRITTEN_BYTE * nbytes
