"""What is in a program of JAX."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core

from rnnscan.ir.jaxprs import inner_jaxprs


def equations_of(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """The equations of a program, those of its loops too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
                yield from equations_of(getattr(value, "jaxpr", value))


def running(function: Callable[..., Any]) -> Callable[..., core.ClosedJaxpr]:
    """`jax.make_jaxpr`, with the programs that the engine's scans are lowered to in their places, as calls."""

    return jax.make_jaxpr(inlined(function))


def inlined(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function whose engine's scans are the programs that they are lowered to, as calls. It returns leaves."""
    return lambda *arguments: _run(jax.make_jaxpr(function)(*arguments), jax.tree.leaves(arguments))


def _run(closed: core.ClosedJaxpr, operands: Any) -> list[Any]:
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *operands], strict=True))
    read = lambda var: var.val if isinstance(var, core.Literal) else values[var]  # noqa: E731
    for equation in jaxpr.eqns:
        inputs = [read(var) for var in equation.invars]
        body = equation.params["jaxpr"] if equation.primitive.name in ("jit", "pjit") else None
        program = getattr(equation.primitive, "program", None)
        body = body if program is None else program([*map(jax.typeof, inputs)], equation.params)
        if body is not None:
            results = jax.jit(lambda *leaves, body=body: _run(body, leaves))(*inputs)
        else:
            params = equation.primitive.get_bind_params(equation.params)
            results = equation.primitive.bind(*inputs, **params)
        results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def is_loop(equation: Any) -> bool:
    """Whether an equation is a loop: loops in place are `lax.while_loop`, others `lax.scan`."""
    return equation.primitive.name in ("scan", "while")


def body_of(loop: Any) -> core.Jaxpr:
    """The program of one trip of a loop."""
    return loop.params["jaxpr" if "jaxpr" in loop.params else "body_jaxpr"].jaxpr


def trips_of_loops(jaxpr: core.Jaxpr) -> list[int]:
    """The trips of the loops of a program. Loops without a known number run where a parallel form is not finite."""
    trips: list[int] = []
    for equation in jaxpr.eqns:
        known = trips_of(equation) if is_loop(equation) else None
        trips += [] if known is None else [known]
        if known is not None or not is_loop(equation):
            trips += [more for body in inner_jaxprs(equation.params) for more in trips_of_loops(body)]
    return trips


def trips_of(loop: Any) -> int | None:
    """The trips of a loop that counts them in the first value of its state; None if it does not."""
    if loop.primitive.name == "scan":
        return int(loop.params["length"])
    condition = loop.params["cond_jaxpr"].jaxpr
    is_count = [equation.primitive.name for equation in condition.eqns] == ["lt"]
    limit = condition.eqns[0].invars[1] if is_count else None
    return int(limit.val) if isinstance(limit, core.Literal) else None
