"""Place each sum over the steps: accumulate it in the loop, or sum stacked values after it. And split a step so."""

from collections.abc import Sequence

from rnnscan.engine.analysis.linear_sums import ends_of_sum
from rnnscan.engine.analysis.split import Split, split
from rnnscan.engine.costs.costs import too_large_to_stack
from rnnscan.engine.costs.heuristics import Heuristics, ShouldBatch
from rnnscan.ir.dataflow import depending
from rnnscan.ir.program import Equation, Program, Value, total_bytes
from rnnscan.newton import Newton


def split_with_sums(program: Program, heuristics: Heuristics, should_batch: ShouldBatch, solve: Newton | None) -> Split:
    """Split a step with sums.

    Args:
        program: the step.
        heuristics: the choices of the platform.
        should_batch: the test for batching.
        solve: as in `split`. Loops that are solved in parallel add nothing up.
    """
    accumulated, operands = place_sums(program, heuristics) if solve is None else ([], [])
    return split(
        program,
        heuristics,
        should_batch=lambda _: should_batch,
        accumulated=accumulated,
        operands=operands,
        solve=solve,
    )


def place_sums(program: Program, heuristics: Heuristics) -> tuple[list[int], list[Value]]:
    """Choose the sums over steps to accumulate in the loop.

    A sum of products is made after the loop, from the stacked operands, if these are smaller than the accumulator: both
    are written and read at each step. An operand that does not wait for the loop is stacked by it too, or made twice: a
    neural SDE trains in 0.76 of the time since it counts. Any other sum is made after the loop only if it needs no more
    stacks, because a cotangent that ends in elementwise work would need a stack as large as itself.

    Returns:
        The positions in `program.summed` of the sums to accumulate in the loop, and the operands of the other sums.
    """
    if heuristics.batch == "nothing":
        return [*range(len(program.summed))], []
    varying = depending(program.equations, [*program.known, *program.carry])
    looped = depending(program.equations, program.carry)
    maker = program.maker
    ends = [list(ends_of_sum(atom, maker, varying.__contains__)) for atom in program.summed]
    stacked: set[Value] = set()
    in_loop = []
    for position, sum_ends in enumerate(ends):
        operands = set(_operands(sum_ends)) & looped
        sum_bytes = max((end.outputs[0].nbytes for end in sum_ends if isinstance(end, Equation)), default=0)
        made_in_loop = ({*_operands(sum_ends)} & varying).difference(program.known) if operands else operands
        if _is_product(sum_ends) and total_bytes(made_in_loop) < sum_bytes:
            stacked |= operands
        else:
            in_loop.append(position)
    accumulated = [
        position
        for position in in_loop
        if not all(
            isinstance(end, Value) and (end in stacked or end not in looped)
            for end in ends_of_sum(program.summed[position], maker, varying.__contains__, materialized=stacked)
        )
    ]
    if heuristics.batch != "costly":
        # The terms of a sum are batched over time, unless they are much larger than the carries of the loops.
        accumulated = [p for p in accumulated if too_large_to_stack(_operands(ends[p]), program.carry)]
    deferred = [value for i, sum_ends in enumerate(ends) if i not in accumulated for value in _operands(sum_ends)]
    return accumulated, [value for value in dict.fromkeys(deferred) if value in varying]


def _operands(ends: Sequence[Equation | Value]) -> list[Value]:
    """The operands of the products, and the values that are summed directly."""
    return [value for end in ends for value in (end.reads if isinstance(end, Equation) else [end])]


def _is_product(ends: Sequence[Equation | Value]) -> bool:
    return bool(ends) and all(isinstance(end, Equation) for end in ends)
