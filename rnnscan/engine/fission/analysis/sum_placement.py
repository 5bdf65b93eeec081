"""Which sums over the steps are made in the loop, and which after it, from what the loop leaves behind."""

from collections.abc import Sequence

from rnnscan.engine.fission.analysis.linear_sums import ends_of_sum
from rnnscan.engine.fission.heuristics import too_large_to_feed
from rnnscan.engine.fission.program import Equation, Program, Value, depending, needed, total_bytes, values_of


def place_sums(program: Program) -> tuple[list[int], list[Value]]:
    """Where the sums over steps are made.

    A sum that ends in products is made after the loop, from the stacked operands, if these are smaller than the two
    accesses a step that an accumulator costs. Another one is made after the loop only if that stacks nothing more:
    a cotangent that is elementwise at its end would make a stack of its own size.

    Returns:
        The positions in `program.summed` whose sum is made in the loop; and, of the others, the operands that the loop
        should leave behind, because to make them at once would make large values on the way.
    """
    varying = depending(program.equations, [*program.known, *program.carry])
    looped = depending(program.equations, program.carry)
    maker = program.maker
    ends = [list(ends_of_sum(atom, maker, varying.__contains__)) for atom in program.summed]
    stacked: set[Value] = set()
    in_loop = []
    for position, its_ends in enumerate(ends):
        operands = set(_operands(its_ends)) & looped
        made = max((end.outputs[0].nbytes for end in its_ends if isinstance(end, Equation)), default=0)
        if _is_product(its_ends) and total_bytes(operands) <= 2 * made:
            stacked |= operands
        else:
            in_loop.append(position)
    accumulated = [
        position
        for position in in_loop
        if not all(
            isinstance(end, Value) and (end in stacked or end not in looped)
            for end in ends_of_sum(program.summed[position], maker, varying.__contains__, at_hand=stacked)
        )
    ]
    deferred = [value for i, its_ends in enumerate(ends) if i not in accumulated for value in _operands(its_ends)]
    free = [equation for equation in program.equations if set(equation.outputs) <= varying - looped]
    large = [
        value
        for value in dict.fromkeys(deferred)
        if value in varying - looped and too_large_to_feed(value, needed(free, [value])[:-1])
    ]
    return accumulated, large


def _operands(ends: Sequence[Equation | Value]) -> list[Value]:
    """The values that vary of the products, and those that are summed as they are."""
    return [value for end in ends for value in (values_of(end.inputs) if isinstance(end, Equation) else [end])]


def _is_product(ends: Sequence[Equation | Value]) -> bool:
    return bool(ends) and all(isinstance(end, Equation) for end in ends)
