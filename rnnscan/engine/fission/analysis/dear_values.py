"""Dear values: those that take long to compute again, for their bytes.

The derivative of a step reads some of its values. To have them again takes the work that leads to them from the carry,
the input and what is kept. A value is dear if keeping it spares more of that work than writing and reading it takes.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp

from rnnscan.engine.fission.analysis.derivative_reads import read_by_derivatives
from rnnscan.engine.fission.costs import PRODUCTS
from rnnscan.engine.fission.program import (
    Atom,
    Equation,
    Program,
    Value,
    determined,
    inputs_of,
    needed,
    total_bytes,
    values_of,
)
from rnnscan.engine.fission.times import nanoseconds, nanoseconds_to_keep


# Another view of the same values, or a cast: what it is made from is as good.
_VIEWS = frozenset(
    {"broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "reshape", "squeeze", "transpose"}
)
# A bfloat16 cell took 1.1 to 1.3 of the time with a 16-bit value kept.
_LEAST_ITEM_BYTES = 4


class Dear(NamedTuple):
    """A value to keep.

    Attributes:
        value: the value.
        nbytes: the bytes that keeping it takes at each step, less those of the carry leaves that nothing reads then.
    """

    value: Value
    nbytes: int


@dataclass(frozen=True)
class Derivative:
    """What the derivative of a step reads, and the work of having it again.

    Attributes:
        program: the step.
        kept: values that are kept, beside the carry and the input.
        stacked_carry: the positions of the carry leaves that are kept before every step. Their new values are known.
    """

    program: Program
    kept: frozenset[Atom]
    stacked_carry: frozenset[int]

    @cached_property
    def unread_carry(self) -> frozenset[int]:
        """The positions of the carry leaves that are read neither before a step nor after it."""
        return self._unread(self._again)

    def dearest(self, most_bytes: int, rejected: Collection[Value]) -> Dear | None:
        """The value that spares most for its bytes; None if none is dear.

        Args:
            most_bytes: the most bytes that it may take.
            rejected: values that are not to be kept.
        """
        best, most = None, 0.0
        stacked = self._stacked_bytes(self._again)
        for equation in self._candidates():
            (value,) = equation.outputs
            without = needed([other for other in self._again if other is not equation], self._wanted - {value})
            nbytes = value.nbytes - (stacked - self._stacked_bytes(without))
            spared = self._time(self._again) - self._time(without) - nanoseconds_to_keep(max(0, nbytes))
            # Bytes that it takes the place of still have to be written.
            gain = spared / max(nbytes, value.nbytes // 8, 1)
            if value not in rejected and nbytes <= most_bytes and gain > most:
                best, most = Dear(value, nbytes), gain
        return best

    @cached_property
    def _known(self) -> frozenset[Atom]:
        return self.kept.union(self.program.new_carry[index] for index in self.stacked_carry)

    @cached_property
    def _read(self) -> frozenset[Value]:
        return frozenset(values_of(read_by_derivatives(self.program)))

    @cached_property
    def _wanted(self) -> frozenset[Value]:
        """What is read, and not known."""
        return self._read - self._known

    @cached_property
    def _again(self) -> list[Equation]:
        """The equations that run again at each step."""
        done = determined(self.program.equations, self.program.invariant) | self._known
        return needed(
            [equation for equation in self.program.equations if not done.issuperset(equation.outputs)], self._wanted
        )

    @cached_property
    def _times(self) -> dict[Equation, float]:
        fixed = determined(self.program.equations, self.program.invariant)
        return {equation: nanoseconds(equation, fixed) for equation in self._again}

    def _time(self, equations: Iterable[Equation]) -> float:
        return sum((self._times[equation] for equation in equations), 0.0)

    def _unread(self, again: Iterable[Equation]) -> frozenset[int]:
        read, carry, new_carry = self._read.union(inputs_of(again)), self.program.carry, self.program.new_carry
        return frozenset(i for i, leaf in enumerate(carry) if leaf not in read and new_carry[i] not in read)

    def _stacked_bytes(self, again: Iterable[Equation]) -> int:
        """The bytes of the carry leaves that are kept before every step, and read where these equations run again."""
        return total_bytes(self.program.carry[index] for index in self.stacked_carry - self._unread(again))

    def _candidates(self) -> Iterator[Equation]:
        """The makers of values that are read, or reduced from many, whose way may take longer than keeping them.

        The time of a way is an upper bound: work that two operands share counts twice.
        """
        times, views = dict[Value, float](), set(self._wanted)
        for equation in reversed(self._again):
            if equation.primitive.name in _VIEWS and not views.isdisjoint(equation.outputs):
                views.update(equation.reads)
        for equation in self._again:
            name, value = equation.primitive.name, equation.outputs[0]
            time = self._times[equation] + sum(times.get(operand, 0.0) for operand in equation.reads)
            times.update(dict.fromkeys(equation.outputs, time))
            is_read = value in views or name in PRODUCTS or name.startswith("reduce_")
            is_number = jnp.issubdtype(value.dtype, jnp.inexact)
            narrow = is_number and value.dtype.itemsize < _LEAST_ITEM_BYTES
            is_one = len(equation.outputs) == 1 and name not in _VIEWS
            if is_read and is_one and not narrow and time > nanoseconds_to_keep(0):
                yield equation
