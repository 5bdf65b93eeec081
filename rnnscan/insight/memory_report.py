"""memory_report(): the memory of a scan, value by value: predicted, counted, and by XLA's analysis."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

import jax
import jax.numpy as jnp

from rnnscan import _checks as checks
from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.high_types import HighTypeError, high_type_reason
from rnnscan._util.messages import in_words, is_count, is_weak
from rnnscan._util.reports import Report, Table, titled
from rnnscan.insight.report_rows import Category, PhaseMemory, ReportRow, count_kept, inference, predict_kept, training
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.base import Net
from rnnscan.nets.calls import run, scan_names, takes_nets
from rnnscan.planning.arguments import Arguments, is_array
from rnnscan.planning.bytes import kept_bytes
from rnnscan.planning.choose import fit
from rnnscan.protocols import Cell
from rnnscan.scan_runner import without_runners


@dataclass(frozen=True)
class MemoryReport(Report):
    """The memory of a scan. Print it, or show it in a notebook; `memory_figure` draws it.

    The categories are those of DL4J's memory reports. "standard": parameters, their gradients, optimizer state, and
    arrays that the cell closes over. "working variable": inputs, carries, outputs, their gradients, and scratch; it
    grows with the number of examples. "working fixed": scratch that does not. "cached": values that the forward pass
    keeps for the backward pass besides its arguments.

    Attributes:
        cell: the cell, in words.
        memory: the memory choice.
        length: the number of steps.
        batch: N, the number of examples.
        predicted: whether `training.kept_bytes` is predicted from one step. It is counted if JAX decides what to keep,
            as under memory=None.
        inference: the memory of the forward pass alone.
        training: the memory of the gradients with respect to parameters, carry and inputs.
    """

    cell: str
    memory: Memory | None
    length: int
    batch: int
    predicted: bool
    inference: PhaseMemory
    training: PhaseMemory

    def _blocks(self) -> Iterator[str | Table]:
        yield from self._tables()
        yield _LEGEND

    def _tables(self) -> Iterator[str | Table]:
        yield "\n".join(self.summary)
        header = ("part", "category", "inference", "inference per example", "training", "training per example", "kept")
        yield Table(header, [self._rows(), self._category_rows()], 2)

    @property
    def summary(self) -> list[str]:
        """The report in a few lines."""
        training = self.training
        kept = f"{readable_bytes(training.kept_bytes)} predicted, " if self.predicted else ""
        offloaded = f", {readable_bytes(training.offloaded_bytes)} of it offloaded" if training.offloaded_bytes else ""
        return [
            f"{self.cell} under {self.memory!r}: {self.length} steps of {self.batch} examples",
            f"kept between the passes: {kept}{readable_bytes(training.counted_bytes)} counted{offloaded}",
            *(_peak(name, phase) for name, phase in (("inference", self.inference), ("training", training))),
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        inference, training = ({row.name: row for row in phase.rows} for phase in (self.inference, self.training))
        rows: list[tuple[str, ...]] = []
        for name, row in (inference | training).items():
            kept = "in host memory" if row.offloaded else "yes" if row.kept and row.bytes else ""
            cells = (*self._cells(inference.get(name)), *self._cells(training.get(name)))
            rows.append((name, row.category, *cells, kept))
        return rows

    def _cells(self, row: ReportRow | None) -> tuple[str, str]:
        if row is None:
            return "", ""
        return readable_bytes(row.bytes), readable_bytes(row.bytes / self.batch) if row.per_example else "fixed"

    def _category_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for category in get_args(Category):
            cells = []
            for phase in (self.inference, self.training):
                fixed, varying = (phase.total(category, per_example=per_example) for per_example in (False, True))
                cells += [readable_bytes(fixed + varying), readable_bytes(varying / self.batch)]
            rows.append((f"all {category}", category, *cells, ""))
        return rows


@dataclass(frozen=True)
class NetMemoryReport(MemoryReport):
    """The memory of a net: a report of each of its scans, and one of the whole.

    The attributes of `MemoryReport` are those of the whole net. They are no sums over the scans: the outputs of one
    scan are the inputs of the next, and scans do not peak at the same time.

    Attributes:
        scans: a `MemoryReport` of each scan, by name: `"net_0"`, `"net_1.forward"`. They are not compiled.
    """

    scans: dict[str, MemoryReport] = field(default_factory=dict)

    def _blocks(self) -> Iterator[str | Table]:
        for name, scan in self.scans.items():
            yield from titled(name, scan._tables())
        yield from titled("in all", self._tables())
        yield _LEGEND


# The categories in the words of the field.
_LEGEND = """standard: parameters, their gradients, optimizer state, and arrays that the cell closes over
working fixed: temporary buffers that do not grow with the examples
working variable: activations, which are inputs, carries, outputs, and their gradients; and temporary buffers
cached: residuals, which are kept from the forward pass for the backward pass
scratch: temporary buffers; kept: also held between the passes"""


@takes_nets
def memory_report(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    memory: Memory | MemoryBudget | None = Memory(),
    optimizer: Any = None,
    batch: int | None = None,
    compile: bool = True,
    **options: Any,
) -> MemoryReport:
    """Report the memory of `scan` with these arguments, in inference and in training.

    Nothing is computed. The kept values are predicted from the trace of one step, and compared with the residuals of
    `jax.vjp`, counted. The scratch memory of a pass is predicted from the live ranges of its jaxpr, and compared with
    XLA's memory analysis of the compiled step.

    The training step is the gradient, with respect to parameters, carry and inputs, of the sum of the squares of all
    results of `scan`. The prediction of scratch memory models XLA's fusion, but not its layout and scheduling; for this
    library's cells it is mostly within a tenth of XLA's figure for a CPU.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: the initial carry, of the same.
        xs: the inputs, of the same, time-major: leaves `(T, N, ...)`; or None, with `length` among the options.
        memory: the memory choice, or a budget for it; None: plain autodiff.
        optimizer: has `init(params) -> state`, as optax optimizers do; None: no optimizer.
        batch: N, the number of examples; None: the first axis of the carry and the second of the inputs, or 1 if they
            disagree.
        compile: whether to compile inference and training for XLA's analysis. Tracing takes a fraction of a second,
            compiling seconds.
        options: other arguments of `scan`, or of the net, such as `seq_lengths`, `mask`, `reset` and `engine`; arrays
            or `jax.ShapeDtypeStruct`.

    Returns:
        A `MemoryReport`; for a net, a `NetMemoryReport`. Both show as text, with rich, and as HTML.

    Raises:
        TypeError: if `optimizer` has no `init`, or `scan` rejects an argument's type.
        ValueError: if `batch` is not a number of examples, or `scan` rejects an argument's value.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell = rs.cells.LSTM(256)
        >>> params = jax.eval_shape(lambda: cell.init(jax.random.key(0), input_size=128))
        >>> carry = (jax.ShapeDtypeStruct((32, 256), jnp.float32),) * 2
        >>> xs = jax.ShapeDtypeStruct((128, 32, 128), jnp.float32)
        >>> report = memory_report(cell, params, carry, xs, compile=False)
        >>> report.training.kept_bytes == report.training.counted_bytes
        True
        >>> for row in report.training.rows:
        ...     if row.category == "cached":
        ...         print(row.name, row.bytes // 2**10, "KiB")
        carry[1] before 16 of the steps 512 KiB
        ys, kept 4096 KiB
        "gates" 16384 KiB

    Source: the categories are those of DL4J's `LayerMemoryReport`.
    """
    if optimizer is not None and not callable(getattr(optimizer, "init", None)):
        raise TypeError(
            f"memory_report: `optimizer` must have a function `init(params)`, as in optax; got {optimizer!r}. "
            "Write optimizer=optax.adam(1e-3), say."
        )
    if batch is not None and not is_count(batch):
        raise ValueError(f"memory_report: `batch` must be a number of examples of at least 1; got {batch!r}.")
    if isinstance(cell, Net) and options.get("key") is not None:
        raise ValueError("memory_report: a net is reported in evaluation, without dropout; got a `key`. Leave it out.")
    cell = without_runners(cell)
    options = {name: _as_leaves(value) for name, value in options.items()}
    if isinstance(cell, Net) and carry is None:
        net: Any = cell
        carry = jax.eval_shape(net.initial_carry, xs)
    if isinstance(memory, MemoryBudget):
        memory = fit(memory, run, cell, params, carry, xs, options)
    arguments = _arguments(cell, params, carry, xs, {**options, "memory": memory})
    scans = {"scans": _scan_reports(arguments)} if isinstance(cell, Net) else {}
    results = arguments.eval_shape(lambda *arrays: arguments.run(arrays))
    counted = kept_bytes(lambda *arrays: arguments.run(arrays), *arguments.shapes)
    predicted = None if memory is None else predict_kept(arguments)
    _, carry, xs, _ = arguments.with_arrays(arguments.shapes)
    report: Any = NetMemoryReport if scans else MemoryReport
    return report(
        cell=in_words(cell),
        memory=memory,
        length=checks.sequence_length(xs, options.get("length")),
        batch=batch or _batch(carry, xs),
        predicted=predicted is not None,
        inference=inference(arguments, results, compile=compile),
        training=training(arguments, predicted or count_kept(arguments), counted, optimizer, compile=compile),
        **scans,
    )


def _arguments(cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any]) -> Arguments:
    """The arguments as shapes. A number in the carry takes the dtype that the cell returns."""
    checks.check_params(params, function="memory_report")
    if reason := high_type_reason(carry=carry, xs=xs):
        raise HighTypeError(reason)
    params, xs = jax.eval_shape(lambda *arguments: arguments, params, xs)
    with_shapes = Arguments(run, cell, params, carry, xs, options)
    returned, _ = with_shapes.eval_shape(lambda *arrays: with_shapes.run(arrays))
    numbers = jax.tree.map(lambda leaf: not is_array(leaf) or is_weak(leaf), carry)
    carry = jax.tree.map(
        lambda leaf, is_number, new: jax.ShapeDtypeStruct(jnp.shape(leaf), (new if is_number else leaf).dtype),
        *(carry, numbers, returned),
    )
    return Arguments(run, cell, params, carry, xs, options)


def _scan_reports(arguments: Arguments) -> dict[str, MemoryReport]:
    """A report of each scan of a net, by name."""
    scans: list[tuple[Any, ...]] = []

    def look(*arrays: Any) -> None:
        for ran in arguments.plans(arrays):
            call = ran.plan.call
            scan_arguments = Arguments(run, call.cell, call.params, call.carry, call.inputs, ran.options)
            scans.append((call.cell, *scan_arguments.with_arrays(scan_arguments.shapes)))

    arguments.eval_shape(look)
    return {
        name: memory_report(cell, params, carry, xs, compile=False, **options)
        for name, (cell, params, carry, xs, options) in zip(scan_names(arguments.cell), scans, strict=True)
    }


def _as_leaves(value: Any) -> Any:
    """A list of numbers as an array; other options as they are."""
    return jnp.asarray(value) if isinstance(value, list) else value


def _batch(carry: Any, xs: Any) -> int:
    """The size of the first axis of the carry and of a step's input; 1 if leaves disagree."""
    sizes = {leaf.shape[:1] for leaf in jax.tree.leaves(carry)}
    sizes |= {leaf.shape[1:2] for leaf in jax.tree.leaves(xs) if len(leaf.shape) > 1}
    return max(1, *sizes.pop()) if len(sizes) == 1 and () not in sizes else 1


def _peak(name: str, phase: PhaseMemory) -> str:
    text = f"{name}, at its peak: {readable_bytes(phase.peak_bytes)} predicted"
    if phase.compiled is None:
        return text
    ratio = f", a ratio of {phase.peak_bytes / phase.compiled.total:.2f}" if phase.compiled.total else ""
    return f"{text}, {readable_bytes(phase.compiled.total)} by XLA's analysis{ratio}"
