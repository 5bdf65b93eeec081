"""The rows of a memory report: the values of inference and training, with their bytes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan._util.messages import is_float
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.engine.plan.residuals import Residual
from rnnscan.insight.kept_values import kept_values
from rnnscan.ir.program import Value
from rnnscan.ir.trace import trace
from rnnscan.nets.base import Net
from rnnscan.nets.calls import scan_names
from rnnscan.planning.arguments import Arguments, Observed
from rnnscan.planning.memory_prediction import host_is_device, predict_temporary


Role: TypeAlias = Literal[
    "parameters",
    "carry and inputs",
    "outputs",
    "gradients",
    "kept",
    "scratch",
    "closed-over arrays",
    "optimizer",
]
Category: TypeAlias = Literal["standard", "working fixed", "working variable", "cached"]


@dataclass(frozen=True)
class ReportRow:
    """One value, or several, that take memory.

    Attributes:
        name: a description.
        role: the role in the pass.
        bytes: the size.
        per_example: whether it grows with the number of examples.
        category: the category in DL4J's terms, see `MemoryReport`.
        kept: whether it is kept for the backward pass.
        offloaded: whether it is kept in host memory.
    """

    name: str
    role: Role
    bytes: int
    per_example: bool
    category: Category
    kept: bool = False
    offloaded: bool = False


@dataclass(frozen=True)
class CompiledBytes:
    """The memory of a compiled function, by XLA's memory analysis.

    Attributes:
        arguments: bytes of its arguments.
        results: bytes of its results.
        temporary: bytes of its temporaries.
    """

    arguments: int
    results: int
    temporary: int

    @property
    def total(self) -> int:
        """The sum of the three."""
        return self.arguments + self.results + self.temporary


@dataclass(frozen=True)
class PhaseMemory:
    """The memory of inference, or of a training step.

    Attributes:
        rows: the values that take memory.
        peak_bytes: the predicted peak: arguments, results and temporaries, without optimizer state.
        compiled: the same by XLA's analysis of the compiled step; None if not compiled, or if XLA has no analysis.
        counted_bytes: bytes kept between the passes, counted on the residuals of `jax.vjp`.
    """

    rows: tuple[ReportRow, ...]
    peak_bytes: int
    compiled: CompiledBytes | None
    counted_bytes: int

    @property
    def kept_bytes(self) -> int:
        """Bytes kept between the passes, predicted. They include arguments that the backward pass reads."""
        return sum(row.bytes for row in self.rows if row.kept)

    @property
    def offloaded_bytes(self) -> int:
        """The kept bytes that are in host memory."""
        return sum(row.bytes for row in self.rows if row.offloaded)

    def total(self, category: Category, *, per_example: bool) -> int:
        """The bytes of a category that grow with the number of examples, or that do not."""
        return sum(row.bytes for row in self.rows if (row.category, row.per_example) == (category, per_example))


@dataclass(frozen=True)
class KeptRows:
    """The kept values: the paths of kept arguments, and a row for each other value."""

    arguments: set[str]
    rows: list[ReportRow]


def predict_kept(arguments: Arguments) -> KeptRows | None:
    """Predict the kept values from the plan of each scan; None if a plan does not determine them."""
    predictions: list[KeptRows] = []

    def look(*arrays: Any) -> None:
        collector = _Collector(dict(zip(map(id, arrays), arguments.places, strict=True)))
        titles = [f"{name}: " for name in scan_names(arguments.cell)] if isinstance(arguments.cell, Net) else [""]
        observed = arguments.plans(arrays)  # Residual alive, because values are compared by identity.
        for title, ran in zip(titles, observed, strict=True):
            kept = kept_values(ran.plan)
            if kept is None:
                return
            collector.add(title, ran, kept)
        predictions.append(KeptRows(collector.arguments, [*collector.rows.values()]))

    arguments.eval_shape(look)
    return predictions[0] if predictions else None


class _Collector:
    """Collects the kept values inside the trace of their scans, each value once.

    Attributes:
        arguments: the paths of kept arguments.
        rows: rows of the others, by name.
    """

    def __init__(self, places: dict[int, str]) -> None:
        self._places = places
        self._seen: set[int] = set()
        self.arguments: set[str] = set()
        self.rows: dict[str, ReportRow] = {}

    def add(self, title: str, ran: Observed, kept: Iterable[Residual]) -> None:
        """Add the values that one scan keeps, in one row a name, and the names that it recomputes."""
        call, memory = ran.plan.call, ran.plan.memory
        assert memory is not None
        leaves = {"initial carry": call.carry, "x": call.xs, "y": ran.ys}
        values = {source: jax.tree.leaves(tree) for source, tree in leaves.items()}
        # Segments copy inputs into new arrays, which no other scan shares.
        segmented = any(sub_scan.segment for sub_scan in memory.sub_scans(call.length))
        of_other_scans = frozenset(self.arguments)
        for one in kept:
            value = one.of if one.source == "constant" else (values.get(one.source) or {one.of: None})[one.of]
            place = self._places.get(id(value))
            copied = segmented and one.source == "x"
            if place is not None and not (copied and place in of_other_scans):
                self.arguments.add(place)
            elif value is None or copied or id(value) not in self._seen:
                self._seen.add(id(value))
                self._add(_kept_row(title, ran.plan, one))
        staying = frozenset() if memory.segment else ran.plan.kept_names
        for name in call.names.known:
            if name not in staying and f'{title}"{name}"' not in self.rows:
                self._add(_kept(f'{title}"{name}", recomputed', 0))

    def _add(self, row: ReportRow) -> None:
        before = self.rows.get(row.name)
        self.rows[row.name] = row if before is None else replace(row, bytes=row.bytes + before.bytes)


def _kept_row(title: str, plan: ExecutionPlan, kept: Residual) -> ReportRow:
    """The row of a kept value that is not an argument."""
    call = plan.call
    if kept.source == "constant":
        return _closed_over(kept.nbytes)
    if kept.source == "name":
        assert plan.memory is not None
        return _kept(f'{title}"{kept.of}"', kept.nbytes, offloaded=kept.of in plan.memory.offload)
    if kept.source == "unnamed":
        return _kept(f"{title}results of {kept.of}, without a name", kept.nbytes)
    if kept.source == "inner scan":
        return _kept(f"{title}residuals of inner scans", kept.nbytes)
    if kept.source == "x":
        input_places = _places("xs", call.inputs)
        return _kept(
            title + (input_places[kept.of] if kept.of < len(input_places) else "resets and valid steps"), kept.nbytes
        )
    if kept.source == "y":
        return _kept(f"{title}{_places('ys', call.y)[kept.of]}, kept", kept.nbytes)
    carry = _places("carry", call.carry)[kept.of]
    times = {1: "the first step", call.length: "every step"}.get(kept.times, f"{kept.times} of the steps")
    return _kept(f"{title}{carry} before {times}", kept.nbytes)


def count_kept(call: Arguments) -> KeptRows:
    """Count the residuals of autodiff: the arguments among them, and one row for all others."""

    def residuals(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(jax.vjp(lambda *arrays: call.run(arrays), *arrays)[1])

    program = trace(residuals, *call.shapes)
    place_of = dict(zip(program.known, call.places, strict=True))
    arguments_kept = {place_of[atom] for atom in program.outputs if atom in place_of}
    residual_bytes = sum(_nbytes(atom) for atom in program.outputs if isinstance(atom, Value) and atom not in place_of)
    constants = sum(_nbytes(atom) for atom in program.outputs if not isinstance(atom, Value))
    closed_over = [_closed_over(constants)] if constants else []
    return KeptRows(arguments_kept, [*closed_over, _kept("residuals of autodiff", residual_bytes)])


def inference(call: Arguments, results: Any, *, compile: bool) -> PhaseMemory:
    """The memory of the forward pass alone."""

    def forward(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(call.run(arrays))

    returned = [
        ReportRow("last carry", "outputs", _tree_bytes(results[0]), True, "working variable"),
        ReportRow("ys", "outputs", _tree_bytes(results[1]), True, "working variable"),
    ]
    return _phase(forward, call, [*_argument_rows(call), *returned], [], 0, compile=compile)


def training(call: Arguments, kept: KeptRows, counted: int, optimizer: Any, *, compile: bool) -> PhaseMemory:
    """The memory of the training step."""
    floats = [
        index
        for index, (root, leaf) in enumerate(zip(call.roots, call.shapes, strict=True))
        if root in _DIFFERENTIATED and is_float(leaf)
    ]

    def gradients(*arrays: Any) -> list[Any]:
        def loss(*some: Any) -> Any:
            changed = dict(enumerate(arrays)) | dict(zip(floats, some, strict=True))
            results = jax.tree.leaves(call.run([*changed.values()]))
            return sum((_square(leaf) for leaf in results if is_float(leaf)), jnp.zeros(()))

        value, pull = jax.vjp(loss, *(arrays[index] for index in floats))
        return list(pull(jnp.ones_like(value)))

    returned = [
        _row_of(root, sum(_nbytes(call.shapes[index]) for index in floats if call.roots[index] == root))
        for root in _DIFFERENTIATED
    ]
    returned = [replace(row, name=f"gradient of {row.name}", role="gradients") for row in returned]
    arguments = [*_argument_rows(call, kept.arguments), *returned]
    phase = _phase(gradients, call, arguments, kept.rows, counted, compile=compile)
    if optimizer is None:
        return phase
    params = call.with_arrays(call.shapes)[0]
    state = _tree_bytes(jax.eval_shape(optimizer.init, params))
    return replace(phase, rows=(*phase.rows, ReportRow("optimizer state", "optimizer", state, False, "standard")))


def _phase(
    function: Callable[..., Sequence[Any]],
    call: Arguments,
    arguments: Sequence[ReportRow],
    kept: Sequence[ReportRow],
    counted: int,
    *,
    compile: bool,
) -> PhaseMemory:
    """A phase from the rows of its arguments, results and kept values. The rest of the predicted need is scratch."""
    need = predict_temporary(function, *call.shapes, fixed=call.roots.count("params"))
    # XLA drops kept values that no gradient reads, so the need may be below the kept bytes.
    cached = sum(row.bytes for row in kept if row.role == "kept" and (host_is_device() or not row.offloaded))
    scratch = max(0, need.nbytes - cached)
    fixed = min(need.fixed, scratch)
    rows = [
        *arguments,
        *kept,
        ReportRow("scratch, of parameters alone", "scratch", fixed, False, "working fixed"),
        ReportRow("scratch", "scratch", scratch - fixed, True, "working variable"),
    ]
    peak = sum(row.bytes for row in arguments) + need.nbytes
    return PhaseMemory(tuple(rows), peak, _compiled_bytes(function, call.shapes) if compile else None, counted)


def _compiled_bytes(function: Callable[..., Any], leaves: Sequence[Any]) -> CompiledBytes | None:
    analysis: Any = jax.jit(function).lower(*leaves).compile().memory_analysis()
    if analysis is None:
        return None
    return CompiledBytes(analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes)


def _argument_rows(call: Arguments, kept: Iterable[str] = ()) -> list[ReportRow]:
    return [
        replace(_row_of(root, _nbytes(leaf)), name=place, kept=place in kept)
        for root, place, leaf in zip(call.roots, call.places, call.shapes, strict=True)
    ]


def _row_of(root: str, nbytes: int) -> ReportRow:
    """The row of an argument."""
    if root == "params":
        return ReportRow(root, "parameters", nbytes, False, "standard")
    return ReportRow(root, "carry and inputs", nbytes, True, "working variable")


def _kept(name: str, nbytes: int, *, offloaded: bool = False) -> ReportRow:
    return ReportRow(name, "kept", nbytes, True, "cached", kept=True, offloaded=offloaded)


def _closed_over(nbytes: int) -> ReportRow:
    return ReportRow("closed-over arrays", "closed-over arrays", nbytes, False, "standard", kept=True)


_DIFFERENTIATED = ("params", "carry", "xs")


def _places(root: str, tree: Any) -> list[str]:
    return [root + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _square(leaf: Any) -> Any:
    return jnp.sum((leaf * leaf.conj()).real, dtype=jnp.float32)


def _tree_bytes(tree: Any) -> int:
    return sum(map(_nbytes, jax.tree.leaves(tree)))


def _nbytes(leaf: Any) -> int:
    return prod(leaf.shape) * int(leaf.dtype.itemsize)
