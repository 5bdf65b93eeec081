"""The derivative of a softplus, as a sigmoid."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from jax import lax

from rnnscan.ir.program import Atom, Equation, Program, concrete, is_zero
from rnnscan.ir.rewrite import replace_equations
from rnnscan.ir.trace import in_place_of


# The operations of `jnp.logaddexp`: the larger operand, and log(1 + exp(-|difference|)) more.
_LOG_ADD_EXP = ["max", "sub", "ne", "add", "abs", "neg", "exp", "log1p", "add", "select_n"]


def sigmoids(program: Program) -> Program:
    """Compute `exp(x - softplus(x))` as `sigmoid(x)`.

    JAX differentiates `softplus(x) = log(e^x + e^0)` in this way, and takes 0 for each operand that is infinite. A
    derivative alone then needs no softplus: Langevin dynamics, which follow the derivative of `log_sigmoid`, take an
    exp and a log1p less for each example, twice.
    """
    return replace_equations(program, partial(_without_softplus, maker=program.maker))


def _without_softplus(equation: Equation, maker: Mapping[Atom, Equation]) -> Sequence[Equation] | None:
    """An equation without the softplus that it reads; None if it reads none."""
    if equation.name == "exp":
        x = _of_sigmoid(equation, maker)
        return None if x is None else in_place_of(equation, lax.logistic, [x])
    # A softplus is infinite where its operand is.
    x = _of_softplus(equation.inputs[0], maker) if _asks_for_infinity(equation) else None
    return None if x is None else [replace(equation, inputs=(x, equation.inputs[1]))]


def _of_sigmoid(equation: Equation, maker: Mapping[Atom, Equation]) -> Atom | None:
    """The x of `exp(x - softplus(x))`."""
    difference = maker.get(equation.inputs[0])
    if difference is None or difference.name != "sub":
        return None
    first, second = (_where_finite(atom, maker) for atom in difference.inputs)
    x = None if second is None else _of_softplus(second, maker)
    return x if x is not None and x is first else None


def _of_softplus(atom: Atom, maker: Mapping[Atom, Equation]) -> Atom | None:
    """The x of `softplus(x)`."""
    call = maker.get(atom)
    if call is None or call.name != "custom_jvp_call" or len(call.inputs) != 2:
        return None
    x, zeros = call.inputs
    made_by = [eqn.primitive.name for eqn in call.params["call_jaxpr"].eqns]
    is_softplus = made_by == _LOG_ADD_EXP and is_zero(zeros, maker) and x.shape == call.outputs[0].shape
    return x if is_softplus else None


def _where_finite(atom: Atom, maker: Mapping[Atom, Equation]) -> Atom | None:
    """The x of `where(x == inf, 0, x)`."""
    select = maker.get(atom)
    if select is None or select.name != "select_n" or len(select.inputs) != 3:
        return None
    predicate, x, zeros = select.inputs
    asks = maker.get(predicate)
    is_of_x = asks is not None and _asks_for_infinity(asks) and asks.inputs[0] is x
    return x if is_of_x and is_zero(zeros, maker) else None


def _asks_for_infinity(equation: Equation) -> bool:
    if equation.name != "eq":
        return False
    number = concrete(equation.inputs[1])
    return number is not None and bool(np.all(np.asarray(number) == np.inf))
