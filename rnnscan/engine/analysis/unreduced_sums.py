"""Loops that accumulate the terms of a sum over steps before these are reduced.

The gradient of a rate for each head is a sum of reductions over rows and features. At each step XLA for a CPU adds up
the numbers of one head after those of another, and makes each from its operands again. The loop adds up the values
themselves, and they are reduced once.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import jax.numpy as jnp

from rnnscan.engine.analysis.linear_sums import ends_of_sum, summed_operands
from rnnscan.ir.dataflow import between
from rnnscan.ir.program import Atom, Equation, Value, nominal_size, outputs_of, total_bytes
from rnnscan.ir.traits import Kind


# Of the values that a loop accumulates instead of one sum: they should stay in a core's cache.
_MOST_BYTES = 32 << 10


@dataclass(frozen=True)
class LoopSums:
    """The sums over steps that a loop adds up.

    Attributes:
        positions: those that it adds up as they are, by position in `Program.summed`.
        unreduced: position -> the values that it adds up in place of another. They are reduced after the last chunk.
        first: the place of the first of these values among all that is added up.
    """

    positions: list[int]
    unreduced: dict[int, tuple[Value, ...]]
    first: int

    @property
    def terms(self) -> list[Value]:
        """The values that it adds up, each once."""
        return [*dict.fromkeys(chain.from_iterable(self.unreduced.values()))]

    @property
    def places(self) -> list[int]:
        """The places of all that the loop adds up."""
        return [*self.positions, *range(self.first, self.first + len(self.terms))]


def unreduced(
    atom: Atom,
    body: Sequence[Equation],
    results: Collection[Atom],
    varies: Callable[[Atom], bool],
    *,
    products: bool = False,
) -> tuple[Value, ...]:
    """The values whose sums over the steps make that of an atom by linear equations; none if it is to be added itself.

    They must have no more elements than the reductions that the loop is spared. A Kalman filter of 16 states, whose
    loop added up 8 values in place of one, took 2 times as long.

    Args:
        atom: the value that is summed.
        body: the equations of the loop.
        results: its new carries and outputs.
        varies: whether a value differs from step to step.
        products: whether to add up what products make, where the sum follows from it. The matrix unit of a TPU adds a
            product to a sum, but not a view of one: that takes a fifth of a training step of an sLSTM.
    """
    maker: dict[Atom, Equation] = {output: equation for equation in body for output in equation.outputs}
    made = {*outputs_of(equation for equation in body if products and equation.kind is Kind.PRODUCT)}
    ends = list(ends_of_sum(atom, maker, varies, made))
    values = tuple(end for end in ends if isinstance(end, Value))
    path = {*between(body, values, [atom])}
    if len(values) < len(ends) or _adds_fixed(path, varies):
        return ()
    if products:
        are_numbers = all(jnp.issubdtype(value.dtype, jnp.inexact) for value in values)
        return values if are_numbers and made.issuperset(values) and atom not in values else ()
    if total_bytes(values) > _MOST_BYTES:
        return ()
    if any(value.dtype not in (jnp.float32, jnp.float64) for value in values):
        return ()  # Sums of narrower numbers are wider than the numbers.
    needed = {*results}.union(*(equation.reads for equation in body if equation not in path))
    spared = [
        equation.inputs[0] for equation in path if _reduces_rows(equation) and needed.isdisjoint(equation.outputs)
    ]
    return values if _elements(values) <= _elements(spared) else ()


def _adds_fixed(path: Collection[Equation], varies: Callable[[Atom], bool]) -> bool:
    """Whether a value that is the same at every step is added, so that the sum depends on the number of steps."""
    summed = ((equation, summed_operands(equation, varies) or []) for equation in path)
    return any(
        is_summed and not varies(atom)
        for equation, flags in summed
        for atom, is_summed in zip(equation.inputs, flags, strict=False)
    )


def _elements(atoms: Sequence[Atom]) -> int:
    return sum(nominal_size(atom.shape) for atom in atoms)


def _reduces_rows(equation: Equation) -> bool:
    """Whether an equation reduces rows to a number each. To one number in all, sums before or after take as long."""
    if equation.name != "reduce_sum" or nominal_size(equation.outputs[0].shape) == 1:
        return False
    return len(equation.inputs[0].shape) - 1 in equation.params["axes"]
