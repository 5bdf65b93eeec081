"""Whether a loop runs as one kernel, and the bytes that its derivative reads."""

from rnnscan.engine.analysis.derivative_reads import read_by_derivatives
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.one_kernel.fits import OneKernel
from rnnscan.ir.program import Atom, Program, total_bytes, values_of
from rnnscan.ir.traits import Kind
from rnnscan.memory import Memory


def small_loop(program: Program, residuals: int | None, choices: Heuristics) -> OneKernel | None:
    """The loop of a step as one kernel; None if it is none, or not faster so.

    Args:
        program: the step, of a scan or of its derivative.
        residuals: `ScanOptions.residuals`.
        choices: the choices of the platform.
    """
    if residuals is None or not choices.one_kernel:
        return None
    if any(equation.is_wider_than_allowed for equation in program.equations):
        return None  # What is written out would be traced without `jax.enable_x64`.
    kernel = OneKernel(program, choices.machine)
    return kernel if kernel.pays and kernel.gains(residuals, choices) else None


def residuals_of(program: Program, length: int, memory: Memory) -> int:
    """The bytes of all that the derivative of a step reads, for the steps of the longest scan that runs at once."""
    longest = max(sub_scan.segment[-1] if sub_scan.segment else sub_scan.steps for sub_scan in memory.sub_scans(length))
    return longest * residual_bytes(program)


def residual_bytes(program: Program) -> int:
    """The bytes of the values of a step that its derivative reads, those that are the same at every step aside."""
    maker, read = program.maker, set[Atom]()
    for atom in values_of(read_by_derivatives(program)):
        source: Atom = atom
        while source in maker and maker[source].kind in (Kind.VIEW, Kind.PART, Kind.JOIN):
            source = maker[source].inputs[0]
        read.add(source)
    return total_bytes(values_of(read - {*program.invariant}))
