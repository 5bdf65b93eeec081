"""Whether a loop recomputes a carry leaf cheaply."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from rnnscan.engine.analysis.split import split
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.ir.components import Components
from rnnscan.ir.program import Equation, Program, Value, values_of
from rnnscan.ir.traits import Kind


# The links of a differentiable neural computer, 32 KiB, follow from write weights by a loop of 67 equations. It takes
# longer than keeping them. The cells of the library have up to 37. A small equation takes as long as copying some KiB.
_RECOMPUTE_EQUATIONS = 48
_BYTES_PER_EQUATION = 4 << 10


class RecomputeCosts:
    """The costs of loops that recompute one carry leaf each, from the others and the input.

    Args:
        program: the step.
        heuristics: the choices of the platform.
    """

    def __init__(self, program: Program, heuristics: Heuristics) -> None:
        self._program, self._heuristics = program, heuristics
        self._components = Components(program.equations, program.carry, program.new_carry)
        self._maker, self._readers = program.maker, defaultdict[Value, list[Equation]](list)
        for equation in program.equations:
            for value in equation.reads:
                self._readers[value].append(equation)

    def is_cheap(self, leaf: int) -> bool:
        """Whether recomputing a carry leaf takes no values much larger than it, and few operations for its bytes."""
        # A step may have many leaves, each at the end of a long path. Most cost much for the values right
        # before the leaf.
        value, begin = self._program.carry[leaf], list[Equation]()
        for equation in self._certain_body(leaf):
            begin.append(equation)
            if self._heuristics.too_large_to_feed(value, [equation]):
                return False
        return not self._is_expensive(value, begin) and self._is_cheap_by_split(leaf)

    def _is_cheap_by_split(self, leaf: int) -> bool:
        program, value = self._program, self._program.carry[leaf]
        known = [other for other in (*program.carry, *program.known) if other is not value]
        alone = replace(program, known=tuple(known), carry=(value,), new_carry=(program.new_carry[leaf],), stacked=())
        should_batch = partial(self._heuristics.should_batch, shared=frozenset(program.equations))
        loops = split(alone, self._heuristics, should_batch=lambda _: should_batch).loops
        body = [equation for loop in loops for equation in loop.body]
        return not self._heuristics.too_large_to_feed(value, body) and not self._is_expensive(value, body)

    def _is_expensive(self, leaf: Value, body: Sequence[Equation]) -> bool:
        """Whether a loop that recomputes a carry leaf spends much on work that the pull-back does again.

        Products with a fixed operand are made once, for both. The moments of Adam, 64 KiB, would need a pass through a
        model that changes at each step, 4 million operations: 1.4 times the time of keeping them.
        """
        if len(body) > max(_RECOMPUTE_EQUATIONS, leaf.nbytes // _BYTES_PER_EQUATION):
            return True
        machine = self._heuristics.machine
        again = [
            equation
            for equation in body
            if equation.kind is Kind.PRODUCT and self._program.fixed.isdisjoint(equation.reads)
        ]
        return machine.estimate(again).nanoseconds > machine.nanoseconds_to_keep(leaf.nbytes)

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
            if equation is None or equation in inside or self._program.fixed.issuperset(equation.outputs):
                continue
            in_cycle = is_between(equation, leaf)
            readers = (reader for output in equation.outputs for reader in self._readers[output])
            read_inside = all(reader in inside for reader in readers if feeds(reader, leaf))
            if in_cycle or (read_inside and not may_batch(equation)):
                inside.add(equation)
                yield equation
                ahead.extend(equation.reads)
