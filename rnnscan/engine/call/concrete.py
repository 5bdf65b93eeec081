"""Run a call under `jax.disable_jit()`: the cell on values, in a Python loop, as `lax.scan` does there.

So a cell may print values, stop in a debugger or branch on them. Nothing is recomputed, whatever the memory choice.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import is_count
from rnnscan._util.step_wrappers import Step, hold_last_valid
from rnnscan.engine.call.prepare import Call, prepare
from rnnscan.naming import StepInfo, evaluate_step, unnamed


def run_on_values(cell: Any, **arguments: Any) -> tuple[Any, Any]:
    """Check the arguments of `scan`, and run the cell at one step after the other.

    Args:
        cell: the cell.
        arguments: the other arguments of `prepare`. There is at least one step.

    Returns:
        The carry after the last step, and the stacked y of all steps.
    """
    first = _FirstStep(last_first=arguments["reverse"])
    call = prepare(cell, **arguments, trace=first.evaluate)
    steps = range(call.length)
    carry = call.carry
    ys: list[Any] = []
    with unnamed():
        for number in reversed(steps) if call.reverse else steps:
            if not ys and first.is_step_of(call):
                carry, y = first.results
            else:
                carry, y = call.step(carry, _step(call.xs, number))
            ys.append(y)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(ys[::-1] if call.reverse else ys))
    if call.valid is not None and call.padding == "hold":
        stacked = hold_last_valid(stacked, call.valid, reverse=call.reverse)
    return carry, stacked


def runs_on_values(length: Any) -> bool:
    """Whether a call runs so. Without a step only a trace has the types of y."""
    return bool(getattr(jax.config, "jax_disable_jit", False)) and is_count(length)


@dataclass
class _FirstStep:
    """The first step to run, which shows the types of a step's results.

    Attributes:
        last_first: whether the steps run from the last to the first.
        carry: the carry that it ran on.
        results: its results.
    """

    last_first: bool
    carry: Any = None
    results: Any = None

    def evaluate(self, step: Step, carry: Any, xs: Any) -> StepInfo:
        """Run the step, in place of a trace of it."""
        self.carry = carry
        info, self.results = evaluate_step(step, carry, _step(xs, -1 if self.last_first else 0))
        return info

    def is_step_of(self, call: Call) -> bool:
        """Whether its results are those of the call's first step: nothing is around the cell, and the carry is its."""
        leaves = zip(jax.tree.leaves(self.carry), jax.tree.leaves(call.carry), strict=True)
        return call.xs is call.inputs and all(first_leaf is leaf for first_leaf, leaf in leaves)


def _step(xs: Any, number: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[number], xs)
