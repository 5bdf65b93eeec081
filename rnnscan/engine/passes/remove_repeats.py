"""Common subexpression elimination."""

from dataclasses import replace

from rnnscan.ir.program import Program
from rnnscan.ir.rewrite import merge_equal, replace_outputs
from rnnscan.ir.traits import Kind


def remove_repeats(program: Program) -> Program:
    """Compute each operation on the same values once.

    XLA does so within a loop, but would stack a repeated value twice for later work.
    """
    equations, replacements = merge_equal(program.equations, lambda equation: (equation.operation, equation.inputs))
    return replace_outputs(replace(program, equations=tuple(equations)), replacements)


def remove_repeated_products(program: Program) -> Program:
    """Remove repeats if that leaves fewer products.

    A shared mask is not worth it: over a mesh all values that read it get its sharding, and a chain's inputs were
    gathered at each step.
    """
    without = remove_repeats(program)
    return without if _count_products(without) < _count_products(program) else program


def _count_products(program: Program) -> int:
    return sum(equation.kind is Kind.PRODUCT for equation in program.equations)
