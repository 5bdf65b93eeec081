"""The bytes that a training step needs under every memory choice, counted without compiling."""

from itertools import chain
from typing import Any

import jax

from rnnscan._util.messages import is_float
from rnnscan.engine.analysis.recurrence import kinds_of_loops
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.ir.program import Atom, outputs_of
from rnnscan.planning.arguments import Arguments, observing_plans


def recurrent_output_bytes(arguments: Arguments) -> int:
    """Count the bytes of the outputs that a loop over time writes, each value once.

    A training step whose loss reads the outputs needs them besides its arguments and results, under every choice. XLA
    cannot fuse a loop with the loss. The step holds the outputs until it has their cotangents, which are as large, and
    another loop reads these while it writes the gradients. So the step needs them at least once. On a CPU each choice
    measured needs them twice or more, also where gradients of the inputs or of a table are larger (`docs/decisions.md`,
    "A budget below the outputs"), which `choose` checks by a compilation.

    Outputs of other work do not count, because XLA may fuse that with the loss.

    Args:
        arguments: the arguments of a scan, or of a net.

    Returns:
        The number of bytes. Nothing is computed.
    """
    counts: list[int] = []

    def look(*arrays: Any) -> None:
        with observing_plans() as observed:
            _, ys = arguments.run(arrays)
        returned = {id(leaf) for leaf in jax.tree.leaves(ys)}
        written: dict[int, int] = {}  # By identity, because a value may be an output twice.
        for ran in observed:
            in_loop = _recurrent_values(ran.plan)
            for atom, leaf in zip(ran.plan.step.y, jax.tree.leaves(ran.ys), strict=True):
                if atom in in_loop and id(leaf) in returned and is_float(leaf):
                    written[id(atom)] = leaf.size * leaf.dtype.itemsize
        counts.append(sum(written.values()))

    arguments.eval_shape(look)
    return counts[0]


def _recurrent_values(plan: ExecutionPlan) -> set[Atom]:
    """The values that the step computes in recurrent loops. One step is no loop."""
    step = plan.step
    if plan.call.length < 2 or plan.call.parallel is not None:
        return set()
    loops = kinds_of_loops(step.program.equations, step.carry, step.new_carry)
    recurrent = (cycle.equations for _, cycle, kind in loops if kind == "recurrent")
    return {*outputs_of(chain.from_iterable(recurrent))}
