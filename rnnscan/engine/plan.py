"""The plan of a call: all decisions, before it runs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from rnnscan.engine.fission.flat_step import FlatStep
from rnnscan.engine.fission.plan import ScanPlan
from rnnscan.engine.prepare import Call
from rnnscan.engine.route import Route, route
from rnnscan.memory import Memory, kept_names


@dataclass(frozen=True)
class Plan:
    """How a call runs. `rnnscan.engine.execute` runs it; the reports of `rnnscan.insight` describe it.

    Attributes:
        call: the call.
        route: its engine.
    """

    call: Call
    route: Route

    @staticmethod
    def of(call: Call) -> "Plan":
        """Plan a call."""
        return Plan(call, route(call))

    @property
    def memory(self) -> Memory | None:
        """The memory choice in force. Side effects must happen once, so cells with them get plain autodiff."""
        return None if self.call.info.has_side_effects else self.call.memory

    @property
    def kept_names(self) -> frozenset[str]:
        """The names whose values are kept between the passes."""
        return frozenset() if self.memory is None else kept_names(self.memory, self.call.names)

    @cached_property
    def step(self) -> FlatStep:
        """The step as a program whose outputs include the named values to keep."""
        return self.call.flat.keeping(self.kept_names, self.call.names)

    @property
    def constants(self) -> list[Any]:
        """The arrays that the step closes over, then the carry leaves that it does not change."""
        leaves = jax.tree.leaves(self.call.carry)
        return [*self.call.traced.consts, *(leaves[index] for index in self.step.unchanged)]

    def scan(self, length: int, *, keep_all_carries: bool = False) -> ScanPlan:
        """The fission engine's plan for a scan, or a segment of it, of this length."""
        chosen = None if self.memory is None else self.memory.chunk
        return ScanPlan(self.step, length, self.call.reverse, self.call.unroll, chosen, keep_all_carries)
