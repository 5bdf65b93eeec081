"""The names of JAX's operations that compute each element of the result from those at its place."""

_ARITHMETIC = {"add", "add_any", "sub", "mul", "div", "rem", "neg", "sign", "max", "min", "clamp", "nextafter"}
_POWERS = {"square", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "logistic", "integer_pow"}
_TRIGONOMETRY = {"sin", "cos", "tan", "asin", "acos", "atan", "atan2"}
_HYPERBOLIC = {"sinh", "cosh", "tanh", "asinh", "acosh", "atanh"}
_SPECIAL = {"erf", "erf_inv", "erfc", "digamma", "lgamma", "igamma", "igammac", "bessel_i0e", "bessel_i1e"}
_ROUNDING = {"floor", "ceil", "round", "reduce_precision"}
_BITS = {"and", "or", "xor", "not", "population_count", "shift_left", "shift_right_logical", "shift_right_arithmetic"}
_SAME_VALUE = {"copy", "copy_p", "name", "stop_gradient", "optimization_barrier"}

# Operands and results have one dtype.
OF_ONE_DTYPE = frozenset(
    _ARITHMETIC | _POWERS | _TRIGONOMETRY | _HYPERBOLIC | _SPECIAL | _ROUNDING | _BITS | _SAME_VALUE
)
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "is_finite"})
# Their results or some operands have another dtype.
MIXED = frozenset({"select_n", "convert_element_type", "pow", "real", "imag", "abs", "complex"})
ELEMENTWISE = (OF_ONE_DTYPE - {"optimization_barrier"}) | COMPARISONS | MIXED
