"""Derivative rules, written out: that of `jnp.linalg.det` solves linear equations."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
from jax.custom_derivatives import SymbolicZero

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.derivative_reads import all_cotangents, derivative_of, vjp_of_floats
from rnnscan.engine.analysis.leaves import places, replace_at, split_list
from rnnscan.engine.analysis.probe import with_tangents
from rnnscan.ir.program import Equation, Program, evaluate, read
from rnnscan.ir.trace import program_of


# Writes a program out.
Write = Callable[[Program], Program]


def rules_of(equation: Equation) -> list[Program]:
    """What the derivative rules of an equation compute; nothing if it has none, or if a rule rejects its operands."""
    if equation.name == "custom_jvp_call":
        rule = derivative_of(equation)
        return [] if rule is None else [rule]
    rules = _vjp_of(equation) if equation.name == "custom_vjp_call" else None
    return [] if rules is None else [rules.forward, rules.backward]


def with_written_rules(equation: Equation, write: Write) -> Any:
    """The jaxpr of a `jax.custom_jvp` or `jax.custom_vjp` whose function and rules are written out.

    Args:
        equation: the call.
        write: writes a program out.
    """
    run = partial(_run, write(program_of(equation.params["call_jaxpr"])))
    with_rules = _with_jvp if equation.name == "custom_jvp_call" else _with_vjp
    return equation.origin.run(jax.make_jaxpr(with_rules(run, equation, write)), *_types(equation))


def _with_jvp(run: Callable[..., list[Any]], equation: Equation, write: Write) -> Callable[..., list[Any]]:
    """A function with the rule of a `jax.custom_jvp`.

    The rule is written when JAX asks for it: it may have the function in itself, for derivatives of second order.
    """

    @jax.custom_jvp
    def function(*operands: Any) -> list[Any]:
        return run(*operands)

    @partial(function.defjvp, symbolic_zeros=True)
    def differentiate(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        moving = [not isinstance(tangent, SymbolicZero) for tangent in tangents]
        program, _ = with_tangents(equation, moving)
        dots = compress(tangents, moving)
        results, of_results = split_list(_run(write(program), *primals, *dots), [len(equation.outputs)])
        return results, of_results

    return function


class _Vjp(NamedTuple):
    """The rules of a `jax.custom_vjp`.

    Attributes:
        forward: `operands -> (*results, *residuals)`.
        backward: `(*residuals, *cotangents of results) -> cotangents of operands`.
        floats: the places of the operands that have a cotangent.
    """

    forward: Program
    backward: Program
    floats: Sequence[int]


def _with_vjp(run: Callable[..., list[Any]], equation: Equation, write: Write) -> Callable[..., list[Any]]:
    """A function with the rules of a `jax.custom_vjp`."""
    rules = _vjp_of(equation)
    assert rules is not None

    @jax.custom_vjp
    def function(*operands: Any) -> list[Any]:
        return run(*operands)

    def forward(*operands: Any) -> tuple[list[Any], list[Any]]:
        results, residuals = split_list(_run(write(rules.forward), *operands), [len(equation.outputs)])
        return results, residuals

    def backward(residuals: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
        of_floats = compress(cotangents, map(is_float, equation.outputs))
        of_operands = _run(write(rules.backward), *residuals, *of_floats)
        return tuple(replace_at([None] * len(equation.inputs), rules.floats, of_operands))

    function.defvjp(forward, backward)
    return function


def _vjp_of(equation: Equation) -> _Vjp | None:
    """The rules of a `jax.custom_vjp`; None if JAX has no derivative, or if they close over arrays."""
    if equation not in _vjps:
        try:
            # JAX refuses tangents of arrays that are closed over. Written out, these would be operands like others.
            _vjps[equation] = None if equation.params["num_consts"] else _traced_vjp(equation)
        except Exception:  # It is for the caller who takes the derivative.
            _vjps[equation] = None
    return _vjps[equation]


_vjps: WeakKeyDictionary[Equation, _Vjp | None] = WeakKeyDictionary()


def _traced_vjp(equation: Equation) -> _Vjp:
    floats = places([*map(is_float, equation.inputs)])
    structure: Any = None

    def forward(*operands: Any) -> list[Any]:
        nonlocal structure
        results, vjp = vjp_of_floats(equation, operands, floats)
        residuals, structure = jax.tree.flatten(vjp)
        return [*results, *residuals]

    closed = jax.make_jaxpr(forward)(*_types(equation))

    def backward(residuals: list[Any], of_floats: list[Any]) -> list[Any]:
        return list(jax.tree.unflatten(structure, residuals)(all_cotangents(equation, of_floats)))

    residuals = closed.out_avals[len(equation.outputs) :]
    of_floats = [atom.aval for atom in equation.outputs if is_float(atom)]
    return _Vjp(program_of(closed), program_of(jax.make_jaxpr(backward)(residuals, of_floats)), floats)


def _types(equation: Equation) -> list[Any]:
    return [atom.aval for atom in equation.inputs]


def _run(program: Program, *operands: Any) -> list[Any]:
    values = dict(zip(program.known, operands, strict=True))
    evaluate(program.equations, values)
    return [read(atom, values) for atom in program.stacked]
