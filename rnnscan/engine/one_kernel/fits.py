"""Whether a loop is faster as one kernel, by the cost model."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

from jax.export import is_symbolic_dim

from rnnscan.engine.costs.costs import has_other_keys
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.costs.machine import Machine, is_fused
from rnnscan.engine.one_kernel.written_out import FUSED, is_call, written_out
from rnnscan.ir.bodies import with_bodies
from rnnscan.ir.contraction import contraction_of, operations_of
from rnnscan.ir.dataflow import depending
from rnnscan.ir.program import Equation, Program, Value
from rnnscan.ir.traits import SCANS, Kind, names_of


# XLA for the CPU compiles these into a kernel.
_KINDS = frozenset({*FUSED, Kind.REDUCE, Kind.CUMULATIVE, Kind.READ, Kind.WRITE, Kind.LOOP, Kind.BRANCH})
_CALLS = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_linear_solve", "rnnscan_call"}) | SCANS
# The table says of these no more than that they are batched over time.
_OTHERS = frozenset({"iota", "bitcast_convert_type"})
# Threefry's rounds are loops of elementwise operations. Other generators are calls.
_RANDOM = frozenset(name for name in names_of(Kind.OPAQUE) if name.startswith("random_") and "gamma" not in name)
# Compiling takes longer with each equation.
_MOST_EQUATIONS = 2_000
# A sum of more elements may be a call of a library (jaxlib 0.10.2 and 0.12.0: not one of 1,728, but one of 4,096).
_MOST_SUMMED = 2_048
# The estimate is rough, so one kernel must win clearly. Of the time of the loop of a large step, training an LSTM with
# four products for its gates takes 0.4 to 0.6 with 4 units and 8 rows, but 1.4 to 1.7 with 16 units and 2 rows.
_GAIN = 1.8


@dataclass(frozen=True)
class OneKernel:
    """A step whose loop may be one kernel.

    All of its calls are written out, or none: one that is left keeps the loop from one kernel.

    Attributes:
        program: the step as it is.
        machine: the machine.
    """

    program: Program
    machine: Machine

    @cached_property
    def written(self) -> Program | None:
        """The step, written out; None if that is too large, or if a size is a symbolic dimension of `jax.export`."""
        equations = self._equations
        if len(equations) > _MOST_EQUATIONS or any(map(_has_symbolic_sizes, equations)):
            return None
        if any(_multiplications(equation) > _MOST_SUMMED for equation in equations):
            return None
        written = written_out(self.program)
        return written if len(written.equations) <= _MOST_EQUATIONS else None

    def gains(self, residuals: int, choices: Heuristics) -> bool:
        """Whether the loop is faster where its derivative reads so many bytes.

        Without calls one kernel gains nothing but that it keeps values for less.
        """
        return bool(self.calls) or residuals <= choices.small_residuals

    @property
    def pays(self) -> bool:
        """Whether the loop is one kernel, and faster so."""
        return self.written is not None and self.obstacle is None and self.is_faster

    @cached_property
    def obstacle(self) -> Equation | None:
        """The first equation that keeps the loop from one kernel; None if none does, or if the step is too large."""
        equations = () if self.written is None else self.written.equations
        return next((equation for equation in with_bodies(equations) if not _is_in_a_kernel(equation)), None)

    @cached_property
    def calls(self) -> list[str]:
        """The calls that are written out, by the names of their primitives; without any, the step stays as it is."""
        return [equation.name for equation in self._equations if is_call(equation)]

    @cached_property
    def _equations(self) -> list[Equation]:
        return [*with_bodies(self.program.equations)]

    @property
    def nanoseconds(self) -> float:
        """The estimated time of a step, as one kernel. XLA computes once what depends on constants alone."""
        written = self.written
        assert written is not None
        varying = depending(written.equations, [*written.invariant, *written.known, *written.carry])
        equations = [equation for equation in written.equations if not varying.isdisjoint(equation.outputs)]
        return sum(map(self.machine.nanoseconds_in_a_kernel, with_bodies(equations)))

    @property
    def is_faster(self) -> bool:
        """Whether one kernel would be faster, if there is no obstacle. The step is not too large."""
        time, read_by_products = 0.0, set[Value]()
        for equation in self._equations:
            is_product = contraction_of(equation) is not None
            # A large loop has one product for those that read the same value.
            is_joined = is_product and is_call(equation) and not read_by_products.isdisjoint(equation.reads)
            if not is_joined:
                time += _nanoseconds(equation, self.machine)
            if is_product:
                read_by_products.update(value for value in equation.reads if value not in self.program.invariant)
        return _GAIN * self.nanoseconds < time


def _has_symbolic_sizes(equation: Equation) -> bool:
    return any(is_symbolic_dim(size) for atom in (*equation.inputs, *equation.outputs) for size in atom.shape)


def _is_in_a_kernel(equation: Equation) -> bool:
    is_large = equation.kind is Kind.REDUCE and any(prod(atom.shape) > _MOST_SUMMED for atom in equation.inputs)
    if is_large or equation.effects:
        return False
    if equation.kind in _KINDS or equation.name in _CALLS | _OTHERS:
        return True
    if equation.kind is Kind.PRODUCT:
        return not is_call(equation)
    if equation.kind is Kind.SCATTER:
        return prod(equation.inputs[1].shape[:-1]) <= 1  # By one index: XLA turns it to a write of a slice.
    return equation.name in _RANDOM and not has_other_keys(equation)


def _nanoseconds(equation: Equation, machine: Machine) -> float:
    """The time of an equation by itself, without its bodies."""
    if not is_call(equation):
        return 0.0 if is_fused(equation) else machine.nanoseconds(equation)
    if equation.kind in (Kind.READ, Kind.SCATTER):
        return machine.ns_per_written_value  # A kernel. A scatter takes 250 ns (jaxlib 0.10.2 and 0.12.0).
    contraction = contraction_of(equation)
    sizes = equation.inputs[0].shape
    matrices = sizes[:-2] if contraction is None else [sizes[axis] for axis in contraction.batch[0]]
    return machine.ns_per_call * prod(matrices)


def _multiplications(equation: Equation) -> int:
    """The multiplications of a product of matrices; 0 for other equations."""
    return 0 if contraction_of(equation) is None else operations_of(equation) // 2
