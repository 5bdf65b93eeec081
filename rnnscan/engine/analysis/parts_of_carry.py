"""Parts of a carry that a step reads by index, to be kept in place of the whole.

    rows = table[indices],  table' = table.at[indices].add(f(rows, x))

If the rows are known at every step, the table follows from its start by a linear recurrence, and need not be kept.
"""

from collections.abc import Collection

from rnnscan.ir.dataflow import partition
from rnnscan.ir.linear import linearly_recomputable
from rnnscan.ir.program import Atom, Equation, Program, Value, nominal_size, total_bytes
from rnnscan.ir.traits import Kind


# Keeping a table is a copy of it at each step, and keeping the parts that are read is a copy of these. A quarter is a
# choice; 16 rows of 256 were measured (docs/decisions.md).
_LARGEST_PART = 1 / 4


def parts_to_keep(program: Program, known: Collection[Atom]) -> dict[Value, int]:
    """Find the parts of carry leaves that are kept in place of the leaves.

    Args:
        program: one step.
        known: values that are kept already.

    Returns:
        Part -> the position in the carry of its leaf.
    """
    _, unknown = partition(program.equations, {*known})
    reads_of: dict[Atom, list[Equation]] = {}
    for equation in unknown:
        if equation.kind is Kind.READ:
            reads_of.setdefault(equation.inputs[0], []).append(equation)
    parts: dict[Value, int] = {}
    for index, leaf in enumerate(program.carry):
        reads = reads_of.get(leaf, [])
        read = [equation.outputs[0] for equation in reads]
        if not reads or nominal_size(leaf.shape) == 1 or total_bytes(read) > _LARGEST_PART * leaf.nbytes:
            continue
        rest = [equation for equation in unknown if equation not in reads]
        with_parts, without = (
            linearly_recomputable(subset, program.carry, program.new_carry, candidates=[index])
            for subset in (rest, unknown)
        )
        if with_parts and not without:
            parts |= dict.fromkeys(read, index)
    return parts
