"""The forward rules of `jax.custom_vjp`, in place of its functions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.interpreters import partial_eval

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.leaves import places, replace_at
from rnnscan.ir.jaxprs import all_equations, inner_jaxprs
from rnnscan.ir.program import Atom, Constant, Equation, Program
from rnnscan.ir.rewrite import replace_inputs, replace_outputs
from rnnscan.ir.trace import Inliner


def forward_rules(program: Program) -> Program:
    """Compute what a `jax.custom_vjp` computes on the forward pass of a gradient: the results of its forward rule.

    JAX cannot differentiate the function forward, which `jax.hessian` does with the forward pass of a gradient. The
    forward rule is equations like others.
    """
    replacements: dict[Atom, Atom] = {}
    equations: list[Equation] = []
    for equation in program.equations:
        equation = replace_inputs(equation, replacements)
        by_rule = _by_rule(equation) if _has_forward_rule(equation) else None
        if by_rule is None:
            equations.append(equation)
        else:
            made, results = by_rule
            equations.extend(made)
            replacements.update(zip(equation.outputs, results, strict=True))
    return replace_outputs(replace(program, equations=tuple(equations)), replacements) if replacements else program


def _has_forward_rule(equation: Equation) -> bool:
    """Whether an equation is a `jax.custom_vjp`, or has one in its bodies. A scan of rnnscan sees to its own."""
    within = [eqn for body in inner_jaxprs(equation.params) for eqn in all_equations(body)]
    names = {equation.name, *(eqn.primitive.name for eqn in within)}
    return "custom_vjp_call" in names and "rnnscan_call" not in names


def _by_rule(equation: Equation) -> tuple[Sequence[Equation], Sequence[Atom]] | None:
    """The equations of the forward rule, and its results; None if JAX has no derivative.

    `jax.vjp` runs the rule: JAX keeps it in private parameters.
    """
    floats = places([is_float(atom) for atom in equation.inputs])

    def forward(*operands: Any) -> list[Any]:
        def of_floats(*leaves: Any) -> list[Any]:
            return equation.evaluate(*replace_at(operands, floats, leaves))

        results: list[Any] = jax.vjp(of_floats, *(operands[index] for index in floats))[0]
        return results

    try:
        closed = jax.make_jaxpr(forward)(*(atom.aval for atom in equation.inputs))
    except (NotImplementedError, TypeError, ValueError):  # It is for the caller who takes the derivative.
        return None
    # Without what the rule keeps for the backward rule.
    live, used, _ = partial_eval.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    consts = [Constant(const) for const, is_used in zip(closed.consts, used, strict=True) if is_used]
    inliner = Inliner()
    results = inliner.inline(live, consts, equation.inputs)
    return inliner.equations, results
