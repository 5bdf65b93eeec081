"""Run a jaxpr with all its scans forward: jax2onnx has no loop that runs in reverse."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from rnnscan.ir.bodies import carry_of_scan


def with_forward_scans(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function of a closed jaxpr. A reverse scan becomes a forward one over flipped inputs, with flipped outputs.

    Scans within the bodies of other loops stay as they are.
    """
    return lambda *arguments: _run(jaxpr, arguments)


def _run(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        results = _equation(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(equation: Any, operands: list[Any]) -> Sequence[Any]:
    primitive, params = equation.primitive, equation.params
    if primitive.name in ("jit", "pjit"):  # Its name in jax 0.10 and later, and before.
        return _run(params["jaxpr"], operands)
    if primitive.name == "scan" and params["reverse"]:
        return _scan_flipped(equation, operands)
    results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def _scan_flipped(equation: Any, operands: list[Any]) -> list[Any]:
    body = equation.params["jaxpr"]
    outside = ([atom.aval for atom in atoms] for atoms in (equation.invars, equation.outvars))
    carried = carry_of_scan(body.in_avals, body.out_avals, *outside)
    consts, init, xs = operands[: carried.start], operands[carried.start : carried.stop], operands[carried.stop :]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = core.jaxpr_as_fun(body)(*consts, *carry, *x)
        return results[: len(carried)], results[len(carried) :]

    carry, ys = jax.lax.scan(step, init, _flipped(xs), length=equation.params["length"])
    return [*carry, *_flipped(ys)]


def _flipped(leaves: list[Any]) -> list[Any]:
    return [jax.lax.rev(leaf, (0,)) for leaf in leaves]
