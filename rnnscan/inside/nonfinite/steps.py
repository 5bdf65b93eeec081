"""The steps of a loop, run forward once. It keeps the carry before each window, from which values are made again.

All steps are counted as they run, from 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan.inside.nonfinite.bodies import QUICK, Body, on_host, results_in, values_in
from rnnscan.ir.program import Value


# Steps whose values are computed at once, from the carry before them.
_WINDOW = 32


class StepRunner:
    """Runs the steps of a loop.

    Args:
        body: the body of the loop.
        consts: the number of its leading inputs that all steps share.
        carry: the number of inputs after them that its leading results are for the next step.
    """

    def __init__(self, body: Body, consts: int, carry: int) -> None:
        self._body, self._carry = body, carry
        self._end = consts + carry

    def run(self, operands: Sequence[Any], length: int) -> "Steps":
        """Run all steps.

        Args:
            operands: the consts, the carry, and the other inputs stacked over the steps.
            length: the number of steps.
        """
        start = self._end - self._carry
        consts, carry = list(operands[:start]), [jnp.asarray(leaf) for leaf in operands[start : self._end]]
        xs = [on_host(leaf) for leaf in operands[self._end :]]
        size = min(_WINDOW, length)
        if length <= size:
            return Steps(self, consts, xs, size, [leaf[None] for leaf in carry], np.zeros(length, bool))
        starts, repeats = self._run(consts, carry, xs, length, size)
        return Steps(self, consts, xs, size, starts, np.asarray(repeats))

    @cached_property
    def _run(self) -> Callable[[list[Any], list[Any], list[Any], int, int], tuple[list[Any], Any]]:
        """The carry before each window, stacked; and for each step whether it repeats the step before."""

        def run(consts: list[Any], carry: list[Any], xs: list[Any], length: int, size: int) -> tuple[list[Any], Any]:
            count = -(-length // size)
            slots = np.full(length, count)  # No slot: the carry before this step is not kept.
            slots[np.minimum(np.arange(count) * size, length - size)] = np.arange(count)

            def step(state: Any, slot_and_x: Any) -> tuple[Any, Any]:
                (carry, last, starts), (slot, x) = state, slot_and_x
                starts = [leaf.at[slot].set(one, mode="drop") for leaf, one in zip(starts, carry, strict=True)]
                results, seen = self._body.run_step(consts, [*carry, *x])
                if seen is None:
                    return (results[: self._carry], last, starts), False
                repeats = jnp.array([(one == other).all() for one, other in zip(seen, last, strict=True)]).all()
                return (results[: self._carry], seen, starts), repeats

            first = [leaf[0] for leaf in xs]
            _, seen = jax.eval_shape(self._body.run_step, consts, [*carry, *first])
            nothing = [jnp.zeros(each.shape, each.dtype) for each in seen or ()]
            starts = [jnp.broadcast_to(leaf, (count, *leaf.shape)) for leaf in carry]
            (_, _, starts), repeats = lax.scan(step, (carry, nothing, starts), (slots, xs))
            return starts, repeats.at[0].set(False)

        return jax.jit(run, static_argnums=(3, 4))

    def values_of(self, window: int, start: int, steps: "Steps") -> Callable[[int], dict[Value, Any]]:
        """All values of the body in the steps of a window, computed by one compiled program.

        Returns:
            A function from the number of a step in the window to its values.
        """
        xs = [leaf[start : start + steps.size] for leaf in steps.xs]
        stacked = [
            on_host(leaf)
            for leaf in self._values(steps.consts, [leaf[window] for leaf in steps.starts], xs, steps.size)
        ]
        carries, computed = stacked[: self._carry], stacked[self._carry :]

        def values(step: int) -> dict[Value, Any]:
            of_step = (leaf[step] for leaf in (*carries, *xs, *computed))
            return dict(zip(self._body.variables, [*steps.consts, *of_step], strict=True))

        return values

    @cached_property
    def _values(self) -> Callable[[list[Any], list[Any], list[Any], int], list[Any]]:
        made = self._body.variables[len(self._body.inputs) :]

        def run(consts: list[Any], carry: list[Any], xs: list[Any], length: int) -> list[Any]:
            def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
                values = values_in(self._body, [*consts, *carry, *x])
                return results_in(self._body, values)[: len(carry)], [*carry, *(values[each] for each in made)]

            stacks: list[Any] = lax.scan(step, carry, xs, length=length)[1]
            return stacks

        return jax.jit(run, static_argnums=3, compiler_options=QUICK)


@dataclass
class Steps:
    """The steps of a loop that has run.

    Attributes:
        runner: what ran it.
        consts: the values that all steps share.
        xs: the inputs, stacked.
        size: the steps of a window.
        starts: the carry before each window, stacked.
        repeats: for each step whether it repeats the step before: the same results come from the same operands.
    """

    runner: StepRunner
    consts: list[Any]
    xs: list[Any]
    size: int
    starts: list[Any]
    repeats: Any
    _window: int | None = None
    _values: Callable[[int], dict[Value, Any]] = field(default=lambda step: {})

    def values(self, step: int) -> dict[Value, Any]:
        """All values of a step."""
        window = step // self.size
        start = min(window * self.size, len(self.repeats) - self.size)
        if window != self._window:
            self._window, self._values = window, self.runner.values_of(window, start, self)
        return self._values(step - start)

    def first_alike(self, step: int, masks: Sequence[Any]) -> int:
        """The first of the steps up to a given one that are all alike, and have equal parts of masks over the steps."""
        start = step
        while start and self.repeats[start] and all(np.array_equal(mask[start], mask[start - 1]) for mask in masks):
            start -= 1
        return start
