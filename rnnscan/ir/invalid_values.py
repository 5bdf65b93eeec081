"""`jax_debug_nans` and `jax_debug_infs`: find the operation that made a NaN, within loops too.

JAX runs a compiled function again, one operation after the other, where a result has a NaN. An engine's call is one of
these operations. Here its equations, and those of its loops, run one after the other, and the error names the first
that makes a NaN of operands without one, with the user's line.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.extend.source_info_util import summarize

from rnnscan.ir.bodies import carry_of_scan
from rnnscan.ir.jaxprs import inner_bodies, opened_jaxpr
from rnnscan.ir.program import Origin


def search_first(function: Callable[..., Any], *arguments: Any) -> None:
    """Search what `function(*arguments)` computes, if JAX looks for invalid values and the arguments have any.

    JAX calls a function so that it has compiled, and that returned such a value. A derivative of it is not searched.

    Args:
        function: a function of pytrees.
        arguments: its arguments.

    Raises:
        FloatingPointError: if a result has such a value.
    """
    if _searched():
        primals = jax.tree.map(lax.stop_gradient, arguments)
        leaves = jax.tree.leaves(primals)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            run_checked_jaxpr(jax.make_jaxpr(function)(*primals), leaves)


def run_checked_jaxpr(traced: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr. If JAX looks for invalid values, an error names the operation that makes one.

    Raises:
        FloatingPointError: if a result has such a value.
    """
    kinds = _searched()
    if not kinds:
        return list(core.jaxpr_as_fun(traced)(*operands))
    with jax.debug_nans(False), jax.debug_infs(False):  # JAX would name a loop, and not an operation in it.
        results: list[Any] = core.jaxpr_as_fun(traced)(*operands)
        if _kind(results, kinds):
            _search(traced, operands, kinds)
    return results


def are_searched() -> bool:
    """Whether JAX is to look for invalid values."""
    return bool(_searched())


def _searched() -> dict[str, Callable[[Any], Any]]:
    """The values that JAX is to look for, and the functions that find them."""
    switches = {"nan": ("jax_debug_nans", jnp.isnan), "inf": ("jax_debug_infs", jnp.isinf)}
    return {kind: find for kind, (switch, find) in switches.items() if getattr(jax.config, switch, False)}


def _kind(values: Iterable[Any], kinds: Mapping[str, Callable[[Any], Any]]) -> str:
    """The kind of invalid value that the first array with one has; empty if no array has one."""
    for value in values:
        is_array = isinstance(value, jax.Array | np.ndarray | np.generic | float)  # And no `Ref`.
        if is_array and jnp.issubdtype(jnp.result_type(value), jnp.inexact):
            kind = next((kind for kind, find in kinds.items() if bool(find(value).any())), "")
            if kind:
                return kind
    return ""


def _search(body: Any, operands: Sequence[Any], kinds: Mapping[str, Callable[[Any], Any]]) -> None:
    """Evaluate a jaxpr, and raise an error where the first equation makes an invalid value of valid operands."""
    jaxpr, consts = opened_jaxpr(body)
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))
    for eqn in jaxpr.eqns:
        inputs = [var.val if isinstance(var, core.Literal) else values[var] for var in eqn.invars]
        origin = Origin(eqn.ctx, eqn.source_info.traceback, eqn.source_info.name_stack)
        results = origin.run(eqn.primitive.bind, *inputs, **eqn.primitive.get_bind_params(eqn.params))
        results = results if eqn.primitive.multiple_results else [results]
        kind = _kind(results, kinds)
        if kind and not _kind(inputs, kinds):
            for inner, inner_operands, inner_results in _inner_calls(eqn, inputs, results):
                if _kind(inner_results, kinds):
                    _search(inner, inner_operands, kinds)
            origin.run(_raise, kind, eqn)
        values.update(zip(eqn.outvars, results, strict=True))


def _raise(kind: str, eqn: Any) -> None:
    place = summarize(eqn.source_info)
    raise FloatingPointError(
        f"invalid value ({kind}) encountered in {eqn.primitive.name}" + (f", from {place}" if place else "")
    )


# The call of an inner jaxpr: the jaxpr, its operands, and its results.
_Call: TypeAlias = tuple[Any, Sequence[Any], Sequence[Any]]


def _inner_calls(eqn: Any, operands: Sequence[Any], results: Sequence[Any]) -> Iterator[_Call]:
    """The calls of inner jaxprs that an equation makes, one after the other."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        yield from _steps_of_scan(eqn, operands)
    elif name == "while":
        yield from _steps_of_while(params, operands)
    elif name == "cond":
        branches = params["branches"]
        yield branches[min(max(int(operands[0]), 0), len(branches) - 1)], operands[1:], results
    elif getattr(eqn.primitive, "program", None) is not None:
        yield eqn.primitive.program([*map(jax.typeof, operands)], params), operands, results
    else:
        bodies = [body for body in inner_bodies(params) if len(opened_jaxpr(body)[0].invars) == len(operands)]
        yield from ((body, operands, results) for body in bodies[:1])


def _steps_of_scan(eqn: Any, operands: Sequence[Any]) -> Iterator[_Call]:
    body, types = eqn.params["jaxpr"], [[var.aval for var in group] for group in (eqn.invars, eqn.outvars)]
    carry = carry_of_scan(body.in_avals, body.out_avals, *types)
    once, state, stacks = operands[: carry.start], operands[carry.start : carry.stop], operands[carry.stop :]
    step, steps = jax.jit(core.jaxpr_as_fun(body)), range(eqn.params["length"])
    for index in reversed(steps) if eqn.params["reverse"] else steps:
        inputs = [*once, *state, *(stack[index] for stack in stacks)]
        results = step(*inputs)
        yield body, inputs, results
        state = results[: len(carry)]


def _steps_of_while(params: dict[str, Any], operands: Sequence[Any]) -> Iterator[_Call]:
    cond_count, body_count = params["cond_nconsts"], params["body_nconsts"]
    holds, step = (jax.jit(core.jaxpr_as_fun(params[name])) for name in ("cond_jaxpr", "body_jaxpr"))
    once, state = operands[cond_count:][:body_count], operands[cond_count + body_count :]
    while holds(*operands[:cond_count], *state)[0]:
        inputs = [*once, *state]
        state = step(*inputs)
        yield params["body_jaxpr"], inputs, state
