"""Which values of a program have a tangent, and which have a cotangent, as JAX's own derivative would decide.

A leaf of the carry without a tangent is not differentiated, in any step. So a step may hold a `while_loop` or a
callback of a time that is a constant, which have no reverse mode. Nor is a leaf that no result with a cotangent depends
on: its cotangent would be an explicit zero, and zero times the derivative of a value that is not finite is NaN.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from jax.interpreters import ad

from rnnscan._util.messages import is_float
from rnnscan.engine.cache.bounded_cache import BoundedCache
from rnnscan.ir.dataflow import depending
from rnnscan.ir.jaxprs import is_jaxpr
from rnnscan.ir.leaves import places, replace_at, split_list
from rnnscan.ir.program import Atom, Equation, Program, Value
from rnnscan.ir.rules import jvp, zero
from rnnscan.ir.trace import trace


# (an equation, whether each operand has a tangent) -> whether each result has one
ActiveResults: TypeAlias = Callable[[Equation, Sequence[bool]], list[bool]]

_rules: dict[str, ActiveResults] = {}


def register_activity(primitive: str, rule: ActiveResults) -> None:
    """Register which results of a primitive have a tangent, where its derivative takes long to trace.

    It is asked for each operand alone: that took most of the time of nested scans, and of matrix states.
    """
    _rules[primitive] = rule


def active_values(program: Program, inputs: Iterable[Value]) -> set[Value]:
    """The values that have a tangent in some step.

    Args:
        program: a step.
        inputs: the inputs that have a tangent in the first step.
    """
    becomes: dict[Atom, list[Value]] = defaultdict(list)
    for new_leaf, leaf in zip(program.new_carry, program.carry, strict=True):
        becomes[new_leaf].append(leaf)
    active, fresh = set[Value](), {*inputs}
    while fresh:
        # In the order of the step, as in `lax.scan`: a rule sees the tangents of all inputs that have one.
        for equation in program.equations:
            if not fresh.isdisjoint(equation.reads):
                flags = tuple(atom in active or atom in fresh for atom in equation.inputs)
                # All floats if the rule rejects the inputs. The derivative itself then says why, if it is taken.
                reached = active_outputs(equation, flags) or map(is_float, equation.outputs)
                fresh.update(output for output in compress(equation.outputs, reached) if output not in active)
        active |= fresh
        fresh = {leaf for value in fresh for leaf in becomes[value]} - active
    return active


def values_with_cotangents(program: Program, active: Collection[Value], results: Iterable[Atom]) -> set[Value]:
    """The values that have a cotangent in some step.

    Args:
        program: a step.
        active: the values that have a tangent, from `active_values`.
        results: the results that have a cotangent in the last step.
    """
    maker, before = program.maker, dict(zip(program.carry, program.new_carry, strict=True))
    reached, waiting = set[Value](), [*results]
    while waiting:
        atom = waiting.pop()
        if not isinstance(atom, Value) or atom not in active or atom in reached:
            continue
        reached.add(atom)
        if atom in before:
            waiting.append(before[atom])
        elif atom in maker:
            waiting.extend(_active_inputs(maker[atom], atom, active))
    return reached


def _active_inputs(equation: Equation, output: Value, active: Collection[Value]) -> list[Atom]:
    """The inputs of an equation from which an output has its tangent."""
    flags = [atom in active for atom in equation.inputs]
    if flags.count(True) == 1:
        return [equation.inputs[flags.index(True)]]
    result = equation.outputs.index(output)
    places = (place for place, is_active in enumerate(flags) if is_active)
    return [equation.inputs[place] for place in places if _reached_outputs(equation, flags, place)[result]]


def _reached_outputs(equation: Equation, flags: Sequence[bool], place: int) -> list[bool]:
    """Which outputs of an equation have a tangent from one input, given which inputs have.

    If the derivative rule rejects a tangent of that input alone, all flagged inputs get one. The outputs are then those
    whose tangents depend on the tangent of this input.
    """
    alone = active_outputs(equation, tuple(other == place for other in range(len(flags))))
    if alone:
        return alone
    traced = tangents_if_any(equation, flags)
    if traced is None:
        return [*map(is_float, equation.outputs)]
    program, results = traced[0], len(equation.outputs)
    reached = depending(program.equations, [program.known[len(flags) + sum(flags[:place])]])
    return [tangent in reached for tangent in program.stacked[results:]]


def active_outputs(equation: Equation, flags: tuple[bool, ...]) -> list[bool]:
    """Which outputs of an equation have a tangent, by its derivative rule; empty if the rule rejects these inputs."""
    if not any(map(is_float, equation.outputs)):
        return [False] * len(equation.outputs)
    if equation.name in _rules:
        return _rules[equation.name](equation, flags)
    key = equation.primitive, flags, len(equation.outputs)
    is_like_others = not any(map(_is_function, equation.params.values()))
    known: list[bool] | None = _active_outputs_of.get(key) if is_like_others else None
    if known is None:
        traced = tangents_if_any(equation, flags)
        known = [] if traced is None else traced[1]
        if is_like_others:
            _active_outputs_of[key] = known
    return known


# (primitive, whether each input has a tangent, the number of outputs) -> whether each output has one, or nothing if the
# rule rejects the inputs. One equation stands for all of a primitive without functions among its parameters.
_active_outputs_of = BoundedCache(4096)


def _is_function(param: Any) -> bool:
    """Whether a parameter is a function or a jaxpr, on which a derivative depends."""
    if isinstance(param, tuple | list):
        return any(map(_is_function, param))
    return is_jaxpr(param) or (callable(param) and not isinstance(param, type))


def tangents_if_any(equation: Equation, active: Sequence[bool]) -> tuple[Program, list[bool]] | None:
    """The program `(*operands, *tangents of some) -> (*results, *their tangents)`, and which results have a tangent.

    It is None if a derivative rule rejects the operands.

    A callback has no derivative, and the rule of a linear solve fails for matrices with a tangent and a right-hand side
    without one (jax 0.10 to 0.12). A rule of the user's may raise any error.

    Args:
        equation: the equation.
        active: for each operand whether it has a tangent.
    """
    of_equation, key = _tangents.setdefault(equation, {}), tuple(active)
    if key not in of_equation:
        try:
            of_equation[key] = _with_tangents(equation, active)
        except Exception:
            of_equation[key] = None
    return of_equation[key]


_tangents: WeakKeyDictionary[Equation, dict[tuple[bool, ...], tuple[Program, list[bool]] | None]] = WeakKeyDictionary()


def _with_tangents(equation: Equation, active: Sequence[bool]) -> tuple[Program, list[bool]]:
    types, indices, flags = [atom.aval for atom in equation.inputs], places(active), list[bool]()

    def tangents(*leaves: Any) -> list[Any]:
        primals, directions = split_list(leaves, [len(types)])
        results, dots = jvp(equation.evaluate, primals, replace_at([*map(zero, primals)], indices, directions))
        flags.extend(not isinstance(dot, ad.Zero) for dot in dots)
        return [*results, *map(ad.instantiate_zeros, dots)]

    return trace(tangents, *types, *(types[index].to_tangent_aval() for index in indices)), flags
