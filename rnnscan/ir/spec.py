"""What every program keeps. The tests check it between passes."""

from collections.abc import Iterable, MutableSet
from typing import Any

import jax

from rnnscan._util.varying import varying
from rnnscan.ir.program import Atom, Constant, Equation, Program, Value


def check_program(program: Program, typed: MutableSet[Equation]) -> Program:
    """The program, if it is one.

    Every value is an input or has one maker, and is made before it is read. Results have the types that their
    primitives give them, and the new carry has the types of the carry.

    Args:
        program: the program.
        typed: equations whose types were checked before. Those of the program are added. Asking a primitive for its
            types takes the most time, and passes keep most equations.

    Raises:
        ValueError: it says which equation breaks what.
    """
    made = set[Value]()
    fault = _fault_of_results(made, program.inputs)
    if fault:
        raise ValueError(f"an input {fault}")
    for number, equation in enumerate(program.equations):
        fault = _fault_of_operands(made, equation.inputs) or _fault_of_results(made, equation.outputs)
        if not fault and equation not in typed:
            fault = _fault_of_types(equation)
            typed.add(equation)
        if fault:
            place = equation.origin.place or "an unknown line"
            raise ValueError(f"equation {number}, {equation.name} of {place}, {fault}")
    fault = _fault_of_operands(made, program.outputs)
    if fault:
        raise ValueError(f"an output {fault}")
    carry, new_carry = ([_type(atom.aval) for atom in atoms] for atoms in (program.carry, program.new_carry))
    if carry != new_carry:
        raise ValueError(f"the new carry must have the types of the carry, {carry}; got {new_carry}")
    return program


def _fault_of_operands(made: set[Value], atoms: Iterable[Atom]) -> str:
    early = next((atom for atom in atoms if not isinstance(atom, Constant) and atom not in made), None)
    return "" if early is None else f"must be made before it is read; got a {_type(early.aval)} that is not"


def _fault_of_results(made: set[Value], values: Iterable[Value]) -> str:
    """Adds the values to those that are made."""
    for value in values:
        if value in made:
            return f"must be made once; got a {_type(value.aval)} again"
        made.add(value)
    return ""


def _fault_of_types(equation: Equation) -> str:
    avals = jax.make_jaxpr(equation.evaluate)(*(atom.aval for atom in equation.inputs)).out_avals
    given, stated = [*map(_type, avals)], [_type(output.aval) for output in equation.outputs]
    return "" if given == stated else f"must state the types that its primitive gives it, {given}; got {stated}"


def _type(aval: Any) -> str:
    """A type with the axes of `shard_map` that it varies over, without JAX's mark of weak types."""
    over = "".join(f", varying over {axis}" for axis in sorted(varying(aval)))
    return f"{aval.dtype}{list(aval.shape)}{over}"
