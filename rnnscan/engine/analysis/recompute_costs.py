"""Whether a loop recomputes a carry leaf cheaply."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial

from rnnscan.engine.analysis.split import split
from rnnscan.engine.costs.costs import too_expensive_to_recompute
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.ir.components import Components
from rnnscan.ir.dataflow import determined
from rnnscan.ir.program import Equation, Program, Value, values_of


class RecomputeCosts:
    """The costs of loops that recompute one carry leaf each, from the others and the input.

    Args:
        program: the step.
        heuristics: the choices of the platform.
    """

    def __init__(self, program: Program, heuristics: Heuristics) -> None:
        self._program = program
        self._heuristics = heuristics

    def is_cheap(self, leaf: int) -> bool:
        """Whether recomputing a carry leaf takes no values much larger than it, and few operations for its bytes."""
        # A step may have many leaves, each at the end of a long way. Most cost much for what they read right before it.
        value, begin = self._program.carry[leaf], list[Equation]()
        for equation in self._certain_body(leaf):
            begin.append(equation)
            if self._heuristics.too_large_to_feed(value, [equation]):
                return False
        return not too_expensive_to_recompute(value, begin, self._fixed) and self._is_cheap_by_split(leaf)

    def _is_cheap_by_split(self, leaf: int) -> bool:
        program, value = self._program, self._program.carry[leaf]
        known = [other for other in (*program.carry, *program.known) if other is not value]
        alone = replace(program, known=tuple(known), carry=(value,), new_carry=(program.new_carry[leaf],), stacked=())
        should_batch = partial(self._heuristics.should_batch, shared=self._equations)
        loops = split(alone, self._heuristics, should_batch=lambda _: should_batch).loops
        body = [equation for loop in loops for equation in loop.body]
        return not self._heuristics.too_large_to_feed(value, body) and not too_expensive_to_recompute(
            value, body, self._fixed
        )

    def _certain_body(self, leaf: int) -> Iterator[Equation]:
        """Equations that the loop of a leaf has in any case, from its end.

        They lie on its cycle; or nothing batches them, and only equations of the loop read them.
        """
        feeds, is_between = self._components.feeds_leaf, self._components.is_between
        may_batch = self._heuristics.may_batch
        inside, ahead = set[Equation](), values_of([self._program.new_carry[leaf]])
        while ahead:
            atom = ahead.pop()
            equation = self._maker.get(atom)
            if equation is None or equation in inside or self._fixed.issuperset(equation.outputs):
                continue
            in_cycle = is_between(equation, leaf)
            readers = (reader for output in equation.outputs for reader in self._readers.get(output, ()))
            read_inside = all(reader in inside for reader in readers if feeds(reader, leaf))
            if in_cycle or (read_inside and not may_batch(equation)):
                inside.add(equation)
                yield equation
                ahead.extend(equation.reads)

    @cached_property
    def _components(self) -> Components:
        return Components(self._program.equations, self._program.carry, self._program.new_carry)

    @cached_property
    def _equations(self) -> frozenset[Equation]:
        return frozenset(self._program.equations)

    @cached_property
    def _fixed(self) -> set[Value]:
        return determined(self._program.equations, self._program.invariant)

    @cached_property
    def _maker(self) -> dict[Value, Equation]:
        return {output: equation for equation in self._program.equations for output in equation.outputs}

    @cached_property
    def _readers(self) -> dict[Value, list[Equation]]:
        readers: dict[Value, list[Equation]] = {}
        for equation in self._program.equations:
            for value in equation.reads:
                readers.setdefault(value, []).append(equation)
        return readers
