"""Which results of a function does `jax.vmap` map, and which have a tangent?

JAX decides it while it traces.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import jax
from jax.custom_batching import custom_vmap
from jax.interpreters import ad

from rnnscan.engine.analysis.leaves import places, replace_at, split_list
from rnnscan.ir.program import Equation, Program
from rnnscan.ir.trace import trace


# (function of arrays) -> function of arrays
Transform: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def mapped_results(vmap: Transform, function: Callable[..., Sequence[Any]], types: Sequence[Any]) -> list[bool]:
    """Which results of a function does `jax.vmap` map?

    Args:
        vmap: `jax.vmap` with its axes.
        function: returns a flat list of arrays.
        types: the types of the arguments of `vmap(function)`.

    Returns:
        For each result whether it is mapped.
    """
    are_mapped: list[bool] = []

    @custom_vmap
    def probe(results: list[Any]) -> list[Any]:
        return results

    @probe.def_vmap
    def note(_: int, flags: list[list[bool]], results: list[Any]) -> tuple[list[Any], list[bool]]:
        are_mapped[:] = flags[0]
        return results, flags[0]

    def probed(*operands: Any) -> list[Any]:
        results = [*function(*operands)]
        # The rule is not asked if no result is mapped.
        are_mapped[:] = [False] * len(results)
        return list(probe(results))

    jax.make_jaxpr(vmap(probed))(*types)
    return are_mapped


def no_axis_is_mapped(axis: Any, axes: Sequence[int | None]) -> bool:
    """Whether a rule of `fancy_primitive_batchers` has nothing to map.

    JAX asks it for operands without the axis too. Their results must not have it: `jax.jacfwd` of a `jax.jvp` rejects a
    value that has it. An axis without a name has a plain object for one (jax 0.10 to 0.12).
    """
    return all(operand_axis is None for operand_axis in axes) and type(axis.name) is object


def with_tangents(equation: Equation, active: Sequence[bool]) -> tuple[Program, list[bool]]:
    """The program `(*operands, *tangents of some) -> (*results, *their tangents)`, and which results have a tangent.

    Args:
        equation: the equation.
        active: for each operand whether it has a tangent.

    Raises:
        Exception: any error, if a derivative rule rejects the operands.
    """
    types, indices, flags = [atom.aval for atom in equation.inputs], places(active), list[bool]()

    def tangents(*leaves: Any) -> list[Any]:
        primals, directions = split_list(leaves, [len(types)])

        def of_some(*active_primals: Any) -> Any:
            results = equation.evaluate(*replace_at(primals, indices, active_primals))
            flags.extend(map(has_tangent, results))
            return results

        results, dots = jax.jvp(of_some, [primals[index] for index in indices], directions)
        return [*results, *dots]

    return trace(tangents, *types, *(types[index].to_tangent_aval() for index in indices)), flags


def tangents_if_any(equation: Equation, active: Sequence[bool]) -> tuple[Program, list[bool]] | None:
    """As `with_tangents`; None if a derivative rule rejects the operands.

    A callback has no derivative, and the rule of a linear solve fails for matrices with a tangent and a right-hand side
    without one (jax 0.10 to 0.12). A rule of the user's may raise any error.
    """
    of_equation, key = _tangents.setdefault(equation, {}), tuple(active)
    if key not in of_equation:
        try:
            of_equation[key] = with_tangents(equation, active)
        except Exception:
            of_equation[key] = None
    return of_equation[key]


_tangents: WeakKeyDictionary[Equation, dict[tuple[bool, ...], tuple[Program, list[bool]] | None]] = WeakKeyDictionary()


def has_tangent(leaf: Any) -> bool:
    """Whether a value in a function that `jax.jvp` runs has a tangent. JAX unpacks those that have none."""
    return isinstance(leaf, ad.JVPTracer)
