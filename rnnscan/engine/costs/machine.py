"""The cost model: about how long equations take on a machine.

Decisions compare its estimates. An estimate adds up the times of equations, each by itself, so it is rough where XLA
fuses many of them.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rnnscan.engine.costs.costs import is_written
from rnnscan.ir.bodies import bodies_of
from rnnscan.ir.contraction import operations_of
from rnnscan.ir.program import Equation, Value, nominal_size, total_bytes
from rnnscan.ir.traits import TRAITS, Kind


@dataclass(frozen=True)
class Cost:
    """What equations take, one time each.

    Attributes:
        flops: the operations of products, and one for each element of other results.
        bytes: the bytes of operands and results. Those between fused equations count too.
        launches: the results that XLA writes to memory by a kernel or call.
        nanoseconds: the estimated time.
    """

    flops: int = 0
    bytes: int = 0
    launches: int = 0
    nanoseconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.launches + other.launches,
            self.nanoseconds + other.nanoseconds,
        )

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.flops * times, self.bytes * times, self.launches * times, self.nanoseconds * times)

    @property
    def seconds(self) -> float:
        """The estimated time."""
        return self.nanoseconds * 1e-9


@dataclass(frozen=True)
class Machine:
    """About how long a machine takes for operations, in nanoseconds. Only ratios of these matter to decisions.

    Attributes:
        name: the machine, in words.
        ns_per_equation: for each equation but a product, whatever its size.
        ns_per_element: for each element of arithmetic.
        ns_per_exp: for each element of exp, log, tanh, logistic, erf and square roots.
        ns_per_exp_in_short_row: for each element of exp, tanh and logistic where the last axis is one of `SHORT_ROWS`.
        ns_per_function: for each element of other functions, such as log1p.
        ns_per_sine: for each element of sine and cosine.
        ns_per_power: for each element of a power, cube root, log-gamma, tangent, inverse sine and the like.
        ns_per_moved: for each element that is read or written by index, or reversed.
        ns_per_random: for each random number.
        ns_per_sorted: for each element of a sort or a cumulative sum.
        ns_per_factored: for each element of factors of a matrix, or of a solution with them, the call included.
        ns_per_product: for each product of values that change from step to step, which is a call of its own.
        ns_per_operation: for each addition and multiplication of such a product.
        ns_per_batched_operation: for those of a product with an operand that is the same at every step. It can run for
            many steps, batched.
        ns_per_kept_value, ns_per_kept_byte: to keep a value from the forward pass to the backward pass: 1.5 times the
            time of writing and reading it.
        ns_per_written_value, ns_per_written_byte: to write a value for readers in the same step, and to read it. XLA
            calls one more kernel, and the value goes through the first cache.
        ns_per_call: for each product of small matrices, and each factor of one, which is a call of a library.
        ns_per_equation_in_a_kernel: for each equation of a loop that is one kernel.
    """

    name: str
    ns_per_equation: float
    ns_per_element: float
    ns_per_exp: float
    ns_per_exp_in_short_row: float
    ns_per_function: float
    ns_per_sine: float
    ns_per_power: float
    ns_per_moved: float
    ns_per_random: float
    ns_per_sorted: float
    ns_per_factored: float
    ns_per_product: float
    ns_per_operation: float
    ns_per_batched_operation: float
    ns_per_kept_value: float
    ns_per_kept_byte: float
    ns_per_written_value: float
    ns_per_written_byte: float
    ns_per_call: float
    ns_per_equation_in_a_kernel: float

    def estimate(self, equations: Iterable[Equation], fixed: Set[Value] = frozenset(), steps: int = 1) -> Cost:
        """What equations take at each step.

        Args:
            equations: the equations.
            fixed: values that are the same at every step, if the equations run for many steps, batched.
            steps: the steps that they are batched over, which share what does not depend on sizes.
        """
        return sum((self.cost(equation, fixed, steps) for equation in equations), Cost())

    def cost(self, equation: Equation, fixed: Set[Value] = frozenset(), steps: int = 1) -> Cost:
        """What an equation takes at each step; one with a body takes what is in it.

        Of branches the longest counts. How often a `while` runs is not known.

        Args:
            equation: the equation.
            fixed: as for `estimate`.
            steps: as for `estimate`.
        """
        bodies = [self.estimate(body, steps=steps) for body in bodies_of(equation)]
        if bodies and equation.name != "while":
            return max(bodies, key=lambda cost: cost.nanoseconds) * int(equation.params.get("length", 1))
        if equation.kind is Kind.PRODUCT:
            flops = operations_of(equation)
            is_alone = fixed.isdisjoint(equation.reads)
            per_flop = self.ns_per_operation if is_alone else self.ns_per_batched_operation
            nanoseconds = (self.ns_per_product / steps if is_alone else 0.0) + per_flop * flops
        else:
            flops = _elements(equation)
            nanoseconds = self.ns_per_equation / steps + self._ns_of(equation) * flops
        nbytes = total_bytes([*equation.reads, *equation.outputs])
        return sum(bodies, Cost(flops, nbytes, int(is_written(equation)), nanoseconds))

    def nanoseconds(self, equation: Equation, fixed: Set[Value] = frozenset()) -> float:
        """The time of `cost`."""
        return self.cost(equation, fixed).nanoseconds

    @cached_property
    def in_a_kernel(self) -> "Machine":
        """The machine for the equations of a loop that is one kernel, where a value is kept by another equation."""
        names = {"ns_per_element", "ns_per_exp_in_short_row", *_FIELDS.values()}
        times: dict[str, Any] = {name: _SHORT_ROWS_IN_A_KERNEL * getattr(self, name) for name in names}
        of_equation = ("ns_per_equation", "ns_per_product", "ns_per_kept_value")
        times |= dict.fromkeys(of_equation, self.ns_per_equation_in_a_kernel)
        times |= dict.fromkeys(("ns_per_operation", "ns_per_batched_operation"), times["ns_per_element"])
        return replace(self, ns_per_kept_byte=times["ns_per_element"] / 4, **times)

    def nanoseconds_in_a_kernel(self, equation: Equation) -> float:
        """The time of an equation, without its bodies, in a loop that is one kernel."""
        elements = 0.0 if is_fused(equation) else self.in_a_kernel._ns_of(equation) * _elements(equation)
        return self.ns_per_equation_in_a_kernel + elements

    def nanoseconds_to_keep(self, nbytes: int) -> float:
        """The least time that keeping a value must spare at each step."""
        return self.ns_per_kept_value + self.ns_per_kept_byte * nbytes

    def nanoseconds_to_write(self, nbytes: int) -> float:
        """About how long a loop takes to write a value for readers in the same step, and to read it."""
        return self.ns_per_written_value + self.ns_per_written_byte * nbytes

    def _ns_of(self, equation: Equation) -> float:
        """The time of an element of an equation's result."""
        if equation.name in SLOW_IN_SHORT_ROWS and _has_short_rows(equation.outputs[0]):
            return self.ns_per_exp_in_short_row
        return float(getattr(self, _FIELDS.get(equation.name, "ns_per_element")))


# XLA for the CPU vectorizes a loop over the last axis alone. An exp of 8,192 elements in a loop takes 1.6 to 1.9 ns for
# each where the last axis has 11 to 24 of them, and 0.6 where it has 32 or more, or at most 8, whose loop is unrolled
# (jax 0.10.0, AVX-512). An expm1, a sine or an erf takes as long in either.
SHORT_ROWS = range(9, 32)
SLOW_IN_SHORT_ROWS = frozenset({"exp", "tanh", "logistic"})

# The rows of a small loop are too short for vectors: a multiplication and an addition take 0.35 to 0.5 ns.
_SHORT_ROWS_IN_A_KERNEL = 1.5

# The field for each element of a primitive's result, where it is not that of arithmetic.
_FIELDS = {
    **dict.fromkeys((name for name, traits in TRAITS.items() if traits.is_transcendental), "ns_per_function"),
    **dict.fromkeys(("tanh", "logistic", "exp", "log", "erf", "sqrt", "rsqrt"), "ns_per_exp"),
    **dict.fromkeys(("sin", "cos"), "ns_per_sine"),
    **dict.fromkeys(("pow", "cbrt", "erf_inv", "lgamma", "digamma"), "ns_per_power"),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "atan2"), "ns_per_power"),
    **dict.fromkeys(("igamma", "igammac", "polygamma", "zeta", "regularized_incomplete_beta"), "ns_per_power"),
    **dict.fromkeys(
        ("gather", "scatter", "scatter-add", "dynamic_slice", "dynamic_update_slice", "rev"), "ns_per_moved"
    ),
    **dict.fromkeys(("threefry2x32", "random_bits", "random_split", "random_fold_in"), "ns_per_random"),
    **dict.fromkeys(("sort", "top_k", "cumsum", "cumprod", "cummax", "while"), "ns_per_sorted"),
    **dict.fromkeys(("cholesky", "triangular_solve", "lu", "qr", "householder_product"), "ns_per_factored"),
}


def is_fused(equation: Equation) -> bool:
    """Whether an equation takes no time of its own: it moves elements, or its time is that of its bodies."""
    return equation.kind in (Kind.VIEW, Kind.SAME, Kind.PART) or bool(bodies_of(equation))


def _has_short_rows(value: Value) -> bool:
    return bool(value.shape) and isinstance(value.shape[-1], int) and value.shape[-1] in SHORT_ROWS


def _elements(equation: Equation) -> int:
    """The elements of an equation's results; of its operands where it reduces them."""
    atoms = equation.inputs if equation.name.startswith(("reduce_", "arg")) else equation.outputs
    return sum(nominal_size(atom.shape) for atom in atoms)


CPU = Machine(
    name="a CPU with 2 cores",
    ns_per_equation=50.0,
    ns_per_element=0.15,
    ns_per_exp=0.5,
    ns_per_exp_in_short_row=1.4,
    ns_per_function=1.0,
    ns_per_sine=2.0,
    ns_per_power=5.0,
    ns_per_moved=1.0,
    ns_per_random=20.0,
    ns_per_sorted=20.0,
    ns_per_factored=10.0,
    ns_per_product=300.0,
    ns_per_operation=0.020,
    ns_per_batched_operation=0.007,
    ns_per_kept_value=700.0,
    ns_per_kept_byte=0.3,
    ns_per_written_value=250.0,
    ns_per_written_byte=0.1,
    # Products of 4 x 4 to 12 x 12 take 390 to 980 ns each in a loop, written out 40 to 560 (jax 0.10.2 and 0.12.0).
    # A Cholesky factor of 2 x 2 takes 160 to 620.
    ns_per_call=700.0,
    # Fused ones take 0.5. A Kalman filter's step of 144 equations takes 300 to 400 ns, its elements aside about 3 each.
    ns_per_equation_in_a_kernel=4.0,
)


def accelerator(name: str, *, launch_ns: float, bytes_per_second: float, flops_per_second: float) -> Machine:
    """A machine that runs kernels one after another, each bound by its launch, its bytes or its products.

    Args:
        name: the machine, in words.
        launch_ns: the time of the smallest kernel, in nanoseconds.
        bytes_per_second: the bandwidth of its memory.
        flops_per_second: the additions and multiplications of products.
    """
    byte, operation = 1e9 / bytes_per_second, 1e9 / flops_per_second
    element = _BYTES_PER_FUSED_ELEMENT * byte
    return Machine(
        name=name,
        ns_per_equation=launch_ns / _EQUATIONS_PER_LAUNCH,
        ns_per_element=element,
        ns_per_exp=element,
        ns_per_exp_in_short_row=element,
        ns_per_function=element,
        ns_per_sine=element,
        ns_per_power=element,
        ns_per_moved=8 * byte,
        ns_per_random=8 * byte,
        ns_per_sorted=64 * byte,
        ns_per_factored=64 * byte,
        ns_per_product=launch_ns,
        ns_per_operation=operation,
        ns_per_batched_operation=operation,
        ns_per_kept_value=3 * launch_ns,
        ns_per_kept_byte=3 * byte,
        ns_per_written_value=launch_ns,
        ns_per_written_byte=2 * byte,
        ns_per_call=launch_ns,
        ns_per_equation_in_a_kernel=launch_ns / _EQUATIONS_PER_LAUNCH,
    )


# A step of an LSTM's forward loop launches its product, and one kernel for its 14 other equations
# (docs/accelerators.md). Values between fused equations do not go through memory.
_EQUATIONS_PER_LAUNCH, _BYTES_PER_FUSED_ELEMENT = 14, 2
# Data sheets, and published launches (docs/accelerators.md, "Modeled time"): nothing here was measured.
GPU = accelerator("an H200, by its data sheet", launch_ns=1400.0, bytes_per_second=4.8e12, flops_per_second=494e12)
# An operation takes at least 1,830 cycles of 1.5 GHz by the estimate of the TPU's compiler (docs/decisions.md).
TPU = accelerator("a TPU v5e, by its data sheet", launch_ns=1220.0, bytes_per_second=819e9, flops_per_second=197e12)
