"""Dead code elimination for calls: what nothing reads is not computed, as for `lax.scan`.

JAX eliminates dead code where it lowers a program, and in `jax.checkpoint`, but it keeps a call that is one operation
as it is, and all of the state of a `while`. XLA does not remove a stack that is only written (jaxlib 0.10.0).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval

from rnnscan._util import effects
from rnnscan.engine.analysis.leaves import places, split_list


def drop_unused(primitive: core.Primitive) -> None:
    """Drop the results of calls that nothing reads, and the operands that only these need.

    Args:
        primitive: one with the parameters `function`, a `FlatFunction`, and `call_jaxpr`, its jaxpr.
    """

    def rule(used: list[bool], *others: Any) -> tuple[list[bool], Any]:
        equation = others[-1]  # From jax 0.12 on the references that are read come before it.
        function, types = equation.params["function"], [var.aval for var in equation.invars]
        if effects.ordered(equation.effects):
            return [True] * len(types), equation
        if not any(used):
            return [False] * len(types), None
        traced = equation.params["call_jaxpr"] or function.traced(types)
        # Zeros stand for operands that go, and no zeros can stand for a key or a reference.
        stay = [not isinstance(aval, jax.core.ShapedArray) or _is_key(aval) for aval in types]
        jaxpr, used_consts, needed = _eliminated(traced.jaxpr, used, stay)
        consts = [const for const, is_used in zip(traced.consts, used_consts, strict=True) if is_used]
        results, operands = places(used), places(needed)
        is_whole = all([*used, *needed])  # Then only calls within it may have changed.
        equation = equation.replace(
            invars=[equation.invars[index] for index in operands],
            outvars=[equation.outvars[index] for index in results],
            effects=jaxpr.effects,
            params={
                "function": function if is_whole else function.only(results, operands, types),
                "call_jaxpr": core.ClosedJaxpr(jaxpr, consts),
            },
        )
        return needed, equation

    partial_eval.dce_rules[primitive] = rule


def without_dead_code(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """A jaxpr with all of its results and operands, and no dead code."""
    jaxpr = closed.jaxpr
    live, used, _ = _eliminated(jaxpr, [True] * len(jaxpr.outvars), [True] * len(jaxpr.invars))
    return core.ClosedJaxpr(live, [const for const, is_used in zip(closed.consts, used, strict=True) if is_used])


def _is_key(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jax.dtypes.extended))


def _eliminated(jaxpr: Any, used: Sequence[bool], stay: Sequence[bool]) -> tuple[Any, list[bool], list[bool]]:
    """A jaxpr without dead code, also in its loops, and which of its constants and operands it has left.

    Args:
        jaxpr: the jaxpr.
        used: for each result whether something reads it.
        stay: for each operand whether it is left in any case.
    """
    live, _, _ = partial_eval.dce_jaxpr_consts(jaxpr, used, True)
    atoms = [*live.outvars, *(atom for equation in live.eqns for atom in equation.invars)]
    read = {atom for atom in atoms if isinstance(atom, core.Var)}  # A literal has no hash.
    shorter = [
        _with_live_state(equation, [var in read for var in equation.outvars])
        if equation.primitive is jax.lax.while_p and not effects.ordered(equation.effects)
        else equation
        for equation in live.eqns
    ]
    kept = [*[False] * len(live.constvars), *stay]
    return partial_eval.dce_jaxpr_consts(live.replace(eqns=shorter), [True] * len(live.outvars), kept)


def _with_live_state(equation: Any, used: Sequence[bool]) -> Any:
    """A `while` with the part of its state that its condition and the used results depend on."""
    condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    of_condition, of_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    _, read = partial_eval.dce_jaxpr(condition.jaxpr, [True])
    live = [*map(any, zip(used, read[of_condition:], strict=True))]
    while not all(live):
        _, read = partial_eval.dce_jaxpr(body.jaxpr, live)
        more = [*map(any, zip(live, read[of_body:], strict=True))]
        if more == live:
            break
        live = more
    condition_jaxpr, _ = partial_eval.dce_jaxpr(condition.jaxpr, [True], [*[True] * of_condition, *live])
    body_jaxpr, _ = partial_eval.dce_jaxpr(body.jaxpr, live, [*[True] * of_body, *live])
    consts, state = split_list(equation.invars, [of_condition + of_body])
    return equation.replace(
        invars=[*consts, *(var for var, is_live in zip(state, live, strict=True) if is_live)],
        outvars=[var for var, is_live in zip(equation.outvars, live, strict=True) if is_live],
        params={
            **equation.params,
            "cond_jaxpr": core.ClosedJaxpr(condition_jaxpr, condition.consts),
            "body_jaxpr": core.ClosedJaxpr(body_jaxpr, body.consts),
        },
    )
