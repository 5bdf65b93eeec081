"""The text of an operation in a box: symbols for arithmetic, short words for the rest."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnscan.ir.program import Constant, Equation
from rnnscan.ir.traits import Kind


# In the place of an operand that an arrow shows.
_HOLE = "\N{MIDDLE DOT}"
_INFIX = {
    "add": "+", "add_any": "+", "and": "and", "atan2": "atan2", "div": "/", "dot_general": "@", "eq": "=",
    "ge": "\N{GREATER-THAN OR EQUAL TO}", "gt": ">", "le": "\N{LESS-THAN OR EQUAL TO}", "lt": "<", "max": "max",
    "min": "min", "mul": "\N{MULTIPLICATION SIGN}", "ne": "\N{NOT EQUAL TO}", "or": "or", "pow": "^", "rem": "mod",
    "sub": "\N{MINUS SIGN}",
}  # fmt: skip
_WORDS = {
    "broadcast_in_dim": "broadcast", "concatenate": "concat", "conv_general_dilated": "conv",
    "dynamic_slice": "slice at", "dynamic_update_slice": "update slice", "logistic": "sigmoid", "reduce_max": "max",
    "reduce_min": "min", "reduce_prod": "product", "reduce_sum": "sum", "rsqrt": "1 / sqrt", "select_n": "select",
}  # fmt: skip


def text_of(equation: Equation) -> str:
    """The text of an operation.

    Example:
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: (2 + x) ** 3 > 1, 1.0)
        >>> [text_of(equation) for equation in graph.program.equations]
        ['2 + ·', '· ^ 3', '· > 1']
    """
    name, params = equation.name, equation.params
    if name == "integer_pow":
        return f"{_HOLE} ^ {params['y']}"
    if name == "convert_element_type":
        return f"to {params['new_dtype']}"
    if name in _INFIX and len(equation.inputs) == 2:
        left, right = map(_number, equation.inputs)
        if left or right:
            return f"{left or _HOLE} {_INFIX[name]} {right or _HOLE}"
        return _INFIX[name]
    if equation.kind is Kind.CALL and _name_of_call(params):
        return _name_of_call(params)
    return _WORDS.get(name, name.replace("_", " "))


def _name_of_call(params: Mapping[str, Any]) -> str:
    """The name of the function that is called, if JAX tells it."""
    body = next((params[key] for key in ("call_jaxpr", "jaxpr") if key in params), None)
    told = getattr(getattr(getattr(body, "jaxpr", None), "debug_info", None), "func_name", "")
    return str(params.get("name") or told or "")


def _number(atom: Any) -> str:
    """A scalar that is known while tracing, with four digits; "" for other operands."""
    if not isinstance(atom, Constant) or atom.shape:
        return ""
    number = np.asarray(atom.value)[()]
    return f"{number:.4g}" if isinstance(number, int | float | np.number) else str(number)
