"""How long the windows of a scan are, and how often its bar moves.

The outer loop copies what a window returns, its outputs and residuals. So windows on a CPU are as short as pays, and
only some of them move the bar. `python -m benchmarks.inside` measures what a bar costs.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from math import ceil, isqrt, log
from typing import Any

import jax

from rnnscan._util.divisors import near_divisor
from rnnscan.checkpointing import NestedScan
from rnnscan.insight.explain import Explanation, explain
from rnnscan.memory import Memory
from rnnscan.scanning import scan


# The bytes of outputs that a window returns. Its residuals take several times as much. The forward pass of an LSTM and
# of a GRU of 96 units and 16 rows took 1.05 of the time without a bar with windows of 16 steps, and 1.08 with 1,000;
# training does not depend on their length (jax 0.10.2, an AMD EPYC).
_BYTES = 1_600_000
# The fewest steps of a window: the work of parallel loops is batched over them.
_LEAST = 32
# The most moves, unless `every` says otherwise.
_MOVES = 20
# The estimated time between two moves, which take 0.5 to 1 ms of processor time each. Estimates of small loops are two
# to seven times what they take, so that this is up to 5 % of theirs.
_SECONDS = 0.15


def window_and_period(
    cell: Any, params: Any, carry: Any, xs: Any, steps: int, every: int | None, options: Mapping[str, Any]
) -> tuple[int, int, Any]:
    """The steps of a window, those between two moves, a multiple of them, and the memory choice of a window.

    Args:
        cell: the cell.
        params: its parameters.
        carry: the carry before the first step.
        xs: the inputs, as arrays.
        steps: the steps of the scan.
        every: the steps between two moves, rounded up to a multiple of `truncate`; None: chosen.
        options: the other arguments of `scan`.
    """
    memory, truncate = options["memory"], options["truncate"] or 1
    if memory is not None and isinstance(memory.segment, NestedScan):  # A schedule is one of all steps.
        return steps, steps, memory
    if jax.default_backend() != "cpu":
        return *divided(steps, every, steps, _MOVES, truncate), memory
    whole = explain(cell, params, carry, xs, length=steps, memory=memory or Memory())
    # Segments and chunks in parallel are those of each window.
    short = options["parallel"] is None and (memory is None or memory.segment is None)
    wanted = max(_LEAST, _BYTES // _bytes_of_step(cell, params, carry, xs)) if short else steps
    window, period = divided(steps, every, wanted, _moves(whole), truncate)
    if short and memory is not None and memory.chunk is None and whole.chunk > 1:
        # The chunks of a short scan are short, because they would take more bytes than it keeps. With those of the
        # whole scan a GRU of 96 units and 16 rows trains in 1.14 of the time without a bar, and else in 1.27.
        memory = replace(memory, chunk=near_divisor(window, whole.chunk))
    return window, period, memory


def divided(steps: int, every: int | None, wanted: int, moves: int, truncate: int) -> tuple[int, int]:
    """The steps of a window, near those that are wanted, and those between two moves.

    Args:
        steps: the steps of the scan.
        every: the steps between two moves; None: those of about so many moves.
        wanted: the wanted steps of a window.
        moves: the number of moves.
        truncate: a number that both are multiples of: gradients are cut at the same steps as in one scan.
    """
    if every is None and truncate == 1:
        window = near_divisor(steps, min(wanted, ceil(steps / _MOVES)))
        return window, window * ceil(steps / window / moves)
    periods = ceil((every or ceil(steps / moves)) / truncate)
    if periods * truncate >= steps:
        return steps, steps
    return truncate * _exact_divisor(periods, max(1, wanted // truncate)), truncate * periods


def _moves(whole: Explanation) -> int:
    """The number of moves: one for each `_SECONDS` of the scan's estimated time, up to `_MOVES`."""
    seconds = whole.length * sum(part.seconds for part in whole.costs if part.direction == "forward")
    return min(max(1, round(seconds / _SECONDS)), _MOVES) if whole.costs else _MOVES


def _bytes_of_step(cell: Any, params: Any, carry: Any, xs: Any) -> int:
    """The bytes of a step's outputs; without outputs, those of its carry."""
    first = jax.tree.map(lambda leaf: leaf[:1], xs)
    carry, ys = jax.eval_shape(lambda: scan(cell, params, carry, first, length=1, memory=None))
    leaves = jax.tree.leaves(ys) or jax.tree.leaves(carry)
    return max(1, sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))


def _exact_divisor(number: int, wanted: int) -> int:
    """The divisor nearest to the wanted one, and not much less; the number itself, if there is none."""
    pairs = ((small, number // small) for small in range(1, isqrt(number) + 1) if number % small == 0)
    enough = [divisor for divisor in chain.from_iterable(pairs) if 4 * divisor >= wanted]
    return min(enough, key=lambda divisor: abs(log(divisor / wanted)), default=number)
