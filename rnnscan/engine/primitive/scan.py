"""The scan as an operation of a jaxpr. Its parameters are data, and its rules make jaxprs.

    rnnscan_scan[step, scan](*constants, *carry, *xs) -> (*final carry, *ys)

`step` is a jaxpr, `(*constants, *carry, *x) -> (*new carry, *y, *kept)`. It holds no arrays but those that a `jax.jit`
within the cell captures. The values that it keeps are no results: a derivative may save them, and not compute them
again. How a scan runs is decided where it is lowered.

The rules of this folder need no plan. `run/scan_rules.py` has the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
from jax.extend import core

from rnnscan._util.varying import in_mesh_of
from rnnscan.engine.costs.heuristics import Heuristics, Whole
from rnnscan.engine.loops.lowering import run_by_program
from rnnscan.ir.jaxprs import without_dead_code
from rnnscan.ir.leaves import places, split_list
from rnnscan.ir.program import nominal_size
from rnnscan.newton import Newton


@dataclass(frozen=True)
class Windows:
    """How matrix states of a scan may run: in windows, which run again on the backward pass.

    Attributes:
        longest: the steps of the longest scan of the call, or of its longest innermost segment.
        in_segments: whether the scan is a segment, which runs again as it is.
    """

    longest: int
    in_segments: bool


@dataclass(frozen=True)
class ScanOptions:
    """What a caller chose of a scan.

    Attributes:
        unroll: of the loops, as in `lax.scan`.
        chunk: steps of a chunk; None: by the heuristics.
        platform: the platform by which it is decided what a derivative saves.
        choices: the heuristics; None: those of that platform, and of the one that the scan is lowered for.
        parallel: how to solve loops in parallel over the steps of a chunk; None: they run step by step.
        offload: the names of the kept values that lie in host memory between the passes.
        chooses_kept_values: whether a derivative chooses values to keep that have no names.
        kept: the labels of the values that the step keeps, in their order.
        units: the name of the axis of a mesh over which units are sharded.
        whole: what is batched where the platform runs the step whole; None: the step is split on every platform.
        residuals: the bytes of all that the derivative of a small loop reads. It may be one kernel. None: it may not.
        windows: how matrix states run in chunkwise form; None: all states run step by step.
    """

    unroll: int | bool = 1
    chunk: int | None = None
    platform: str = "cpu"
    choices: Heuristics | None = None
    parallel: Newton | None = None
    offload: tuple[str, ...] = ()
    chooses_kept_values: bool = False
    kept: tuple[str, ...] = ()
    units: str = "model"
    whole: Whole | None = None
    residuals: int | None = None
    windows: Windows | None = None

    def on_rows(self, rows: Any) -> "ScanOptions":
        """The options of a scan under `jax.vmap`."""
        return self if self.residuals is None else replace(self, residuals=nominal_size([rows]) * self.residuals)


@dataclass(frozen=True)
class Scan:
    """The parameters of a scan besides its step.

    Attributes:
        constants: the number of arrays that are the same at every step.
        carry: the number of leaves of the carry.
        length: the number of steps.
        reverse: from the last step to the first.
        options: what the caller chose.
        copied: by the position of a constant, the `Copy` that has its derivative in reverse mode. Copies are operands
            after the inputs. No step reads them.
        condition: the jaxpr of `(*constants, *carry) -> whether another step runs`, with the axes of rows that have
            each their own; None: all steps run. After the last step the carry is held, and ys are zero. Such a scan
            counts its steps in the first leaf of the carry.
    """

    constants: int
    carry: int
    length: int
    reverse: bool
    options: ScanOptions = field(default_factory=ScanOptions)
    copied: tuple[tuple[int, Any], ...] = ()
    condition: core.ClosedJaxpr | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it is known only when it runs how many steps do."""
        return self.condition is not None


@dataclass(frozen=True)
class InnerScan:
    """A scan within a step, without what it saves.

    Attributes:
        step: its step.
        scan: its other parameters.
        reads: for each result whether its derivative reads it.
        has_residuals: whether its derivative reads the residuals that it saves, which then have no derivative.
    """

    step: core.ClosedJaxpr
    scan: Scan
    reads: tuple[bool, ...]
    has_residuals: bool = False


@dataclass(frozen=True)
class Saving:
    """What a scan returns for a derivative, after its results.

    Attributes:
        starts: the leaves of the carry before each whole chunk, which come last.
        inner: the scan without it, if it is one within a step whose residuals are kept between the passes.
    """

    starts: tuple[int, ...] = ()
    inner: InnerScan | None = None


@dataclass(frozen=True)
class Tangents:
    """Which operands and results of a scan have tangents, which are operands and results after all others.

    Attributes:
        operands: whether each operand has one.
        results: whether each result has one.
    """

    operands: tuple[bool, ...]
    results: tuple[bool, ...]


class ScanPrimitive(core.Primitive):
    """A primitive whose equations are lowered to a program of the engine.

    Attributes:
        program: makes the jaxpr of that program, from the types of the operands and the parameters.
    """

    program: Any = None
    multiple_results = True


scan_p = ScanPrimitive("rnnscan_scan")
# Values and tangents together, for forward mode. Partial evaluation takes it apart.
joint_scan_p = ScanPrimitive("rnnscan_joint_scan")


def bind(
    operands: Sequence[Any],
    step: core.ClosedJaxpr,
    scan: Scan,
    saving: Saving | None = None,
    tangents: Tangents | None = None,
) -> list[Any]:
    """The results of a scan, as an equation of the current trace."""
    if tangents is None:
        return list(scan_p.bind(*operands, step=step, scan=scan, saving=saving))
    return list(joint_scan_p.bind(*operands, step=step, scan=scan, tangents=tangents))


def stacked(aval: Any, length: int) -> Any:
    """The type of a stack of values of a type."""
    return core.unmapped_aval(length, 0, aval)


def y_size(step: core.ClosedJaxpr, scan: Scan) -> int:
    """The number of leaves of y."""
    return len(step.out_avals) - scan.carry - len(scan.options.kept)


def reading(jaxpr: core.ClosedJaxpr, types: Sequence[Any], operands: Sequence[int]) -> core.ClosedJaxpr:
    """A jaxpr of more operands, of these types. It reads its own at some places among them."""
    run = core.jaxpr_as_fun(jaxpr)
    return jax.make_jaxpr(lambda *leaves: run(*(leaves[place] for place in operands)))(*types)


def counted(step: core.ClosedJaxpr, scan: Scan) -> tuple[core.ClosedJaxpr, Scan]:
    """The scan that runs until its count reaches a number, which is its first constant."""
    types = [step.in_avals[scan.constants], *step.in_avals]
    constants = scan.constants + 1
    condition = jax.make_jaxpr(lambda until, *leaves: [leaves[scan.constants] < until])(
        *types[: constants + scan.carry]
    )
    closed = reading(step, types, range(1, len(types)))
    return closed, replace(scan, constants=constants, condition=condition)


def result_types(step: core.ClosedJaxpr, scan: Scan) -> list[Any]:
    """The types of the final carry and of ys."""
    carry, ys, _ = split_list(step.out_avals, [scan.carry, y_size(step, scan)])
    return [*carry, *(stacked(aval, scan.length) for aval in ys)]


def _types(
    *_: Any, step: core.ClosedJaxpr, scan: Scan, saving: Saving | None = None, tangents: Tangents | None = None
) -> tuple[list[Any], Any]:
    types = result_types(step, scan)
    if tangents is not None:
        types += [types[index].to_tangent_aval() for index in places(tangents.results)]
    if saving is not None and saving.starts:
        count = scan.length // (scan.options.chunk or 1)
        types += [stacked(step.in_avals[scan.constants + index], count) for index in saving.starts]
    return types, step.effects


for _primitive in (scan_p, joint_scan_p):
    _primitive.def_effectful_abstract_eval(_types)


def lowered_for_each_platform(primitive: ScanPrimitive, run: Callable[..., Any]) -> None:
    """Run a primitive's equations by a function.

    Args:
        primitive: the primitive.
        run: `(*operands, platform=None, **parameters) -> results`. What it traces is not differentiated.
    """

    def program(types: Sequence[Any], params: dict[str, Any], platform: str | None = None) -> core.ClosedJaxpr:
        with in_mesh_of(types):
            return without_dead_code(jax.make_jaxpr(partial(run, platform=platform, **params))(*types))

    primitive.program = program
    run_by_program(primitive, program, ("cpu", "cuda", "rocm", "tpu"))
