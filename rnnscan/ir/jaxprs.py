"""Jaxprs: those in the parameters of an equation, such as the body of a loop, and one without its dead code."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from rnnscan._util import effects
from rnnscan.ir.leaves import split_list


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[core.Jaxpr]:
    """The jaxprs among the parameters of an equation, closed ones without their constants."""
    for body in inner_bodies(params):
        yield opened_jaxpr(body)[0]


def inner_bodies(params: Any) -> Iterator[core.Jaxpr | core.ClosedJaxpr]:
    """The jaxprs among the parameters of an equation, or in one of them, as they are."""
    if is_jaxpr(params):
        yield params
    elif isinstance(params, tuple | list | dict):
        for param in params.values() if isinstance(params, dict) else params:
            yield from inner_bodies(param)


def opened_jaxpr(body: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
    """A jaxpr without its constants, and these; one that is not closed has none."""
    return (body.jaxpr, body.consts) if isinstance(body, core.ClosedJaxpr) else (body, [])


def is_jaxpr(value: Any) -> bool:
    """Whether a value is a jaxpr, closed or not."""
    return isinstance(value, _JAXPRS)


_JAXPRS = (core.Jaxpr, core.ClosedJaxpr)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, each followed by those of the jaxprs within it."""
    for equation in jaxpr.eqns:
        yield equation
        for body in inner_jaxprs(equation.params):
            yield from all_equations(body)


def without_dead_code(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """A jaxpr with all of its results and operands, and no dead code, nor in its loops.

    JAX eliminates dead code where it lowers a program, and in `jax.checkpoint`, but it keeps a call that is one
    operation as it is, and all of the state of a `while`. XLA does not remove a stack that is only written (jaxlib
    0.10.0).
    """
    live, _, _ = partial_eval.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.out_avals), True)
    atoms = [*live.outvars, *(atom for equation in live.eqns for atom in equation.invars)]
    read = {atom for atom in atoms if isinstance(atom, core.Var)}  # A literal has no hash.
    shorter = [
        _with_live_state(equation, [var in read for var in equation.outvars])
        if equation.primitive is jax.lax.while_p and not effects.ordered(equation.effects)
        else equation
        for equation in live.eqns
    ]
    kept = [*[False] * len(live.constvars), *[True] * len(live.invars)]
    jaxpr, used, _ = partial_eval.dce_jaxpr_consts(live.replace(eqns=shorter), [True] * len(live.outvars), kept)
    return core.ClosedJaxpr(jaxpr, [*compress(closed.consts, used)])


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
