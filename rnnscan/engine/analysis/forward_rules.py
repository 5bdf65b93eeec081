"""The forward rules of `jax.custom_vjp`, in place of its functions."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.derivative_reads import vjp_of_floats
from rnnscan.engine.analysis.saving_calls import SCAN
from rnnscan.ir.dataflow import depending
from rnnscan.ir.leaves import places
from rnnscan.ir.program import Atom, Equation, Program
from rnnscan.ir.rewrite import replace_inputs, replace_outputs
from rnnscan.ir.trace import inlined
from rnnscan.ir.traits import SCANS


def forward_rules(program: Program) -> Program:
    """Compute what a `jax.custom_vjp` computes on the forward pass of a gradient: the results of its forward rule.

    JAX cannot differentiate the function forward, which `jax.hessian` does with the forward pass of a gradient. The
    forward rule is equations like others.
    """
    if not any(map(_has_forward_rule, program.equations)):
        return program
    active = depending(program.equations, filter(is_float, program.inputs))
    replacements: dict[Atom, Atom] = {}
    equations: list[Equation] = []
    for equation in program.equations:
        by_rule = None
        if _has_forward_rule(equation):
            # Without a tangent JAX runs the function.
            floats = places([atom in active and is_float(atom) for atom in equation.inputs])
            by_rule = _by_rule(replace_inputs(equation, replacements), floats)
        if by_rule is None:
            equations.append(replace_inputs(equation, replacements))
        else:
            made, results = by_rule
            equations.extend(made)
            replacements.update(zip(equation.outputs, results, strict=True))
    return replace_outputs(replace(program, equations=tuple(equations)), replacements)


def _has_forward_rule(equation: Equation) -> bool:
    """Whether an equation is a `jax.custom_vjp`, or has one in its bodies. A scan that saves values has the rules."""
    if equation.name == SCAN:
        return equation.params["saving"] is None and "custom_vjp_call" in equation.names
    return "custom_vjp_call" in equation.names and SCANS.isdisjoint(equation.names)


def _by_rule(equation: Equation, floats: Sequence[int]) -> tuple[Sequence[Equation], Sequence[Atom]] | None:
    """The equations of the forward rule, and its results; None if JAX has no derivative.

    `jax.vjp` runs the rule: JAX keeps it in private parameters.

    Args:
        equation: the call, or what has it in its bodies.
        floats: the positions of the operands that may have tangents.
    """
    closed = _forward_pass(equation, floats)
    if closed is None:  # JAX refuses tangents of what a rule closes over.
        open_floats = [index for index in floats if _forward_pass(equation, [index]) is not None]
        closed = _forward_pass(equation, open_floats) if len(open_floats) < len(floats) else None
    if closed is None:  # It is for the caller who takes the derivative.
        return None
    # Without what the rule keeps for the backward rule.
    live, used, _ = partial_eval.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    return inlined(core.ClosedJaxpr(live, [*compress(closed.consts, used)]), equation.inputs)


def _forward_pass(equation: Equation, floats: Sequence[int]) -> core.ClosedJaxpr | None:
    """The results of an equation in the forward pass of its derivative; None if JAX has none."""

    def forward(*operands: Any) -> list[Any]:
        return vjp_of_floats(equation, operands, floats)[0]

    try:
        return jax.make_jaxpr(forward)(*(atom.aval for atom in equation.inputs))
    except Exception:  # JAX's error for what is closed over has no public type.
        return None
