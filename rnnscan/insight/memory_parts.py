"""The parts of a memory report: what takes memory in inference and in training, and how much of each there is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan import checks
from rnnscan.engine.sizes import Kept, kept_sizes
from rnnscan.engine.trace import Value, trace
from rnnscan.insight.memory_prediction import host_is_device, predict_temporary
from rnnscan.memory import Memory, kept_names
from rnnscan.naming import Names, look_over


Role: TypeAlias = Literal[
    "parameters",
    "carry and inputs",
    "outputs",
    "gradients",
    "kept",
    "scratch",
    "what the cell closes over",
    "optimizer",
]
Category: TypeAlias = Literal["standard", "working fixed", "working variable", "cached"]


@dataclass(frozen=True)
class Part:
    """One thing that takes memory.

    Attributes:
        name: what it is.
        role: what it is for.
        bytes: how large it is.
        per_example: whether it grows with the number of examples.
        category: in DL4J's words, see `MemoryReport`.
        kept: whether the backward pass reads it, so that it stays between the passes.
        offloaded: whether it stays in the host's memory.
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
    """What a compiled function takes, by XLA's memory analysis.

    Attributes:
        arguments: bytes of its arguments.
        results: bytes of its results.
        temporary: bytes that it needs beside them.
    """

    arguments: int
    results: int
    temporary: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.arguments + self.results + self.temporary


@dataclass(frozen=True)
class PhaseMemory:
    """What inference takes, or a training step.

    Attributes:
        parts: what takes memory.
        peak_bytes: arguments, results and what is live beside them when that is the most; predicted. Without the
            optimizer's state, which the step that is compiled does not have either.
        compiled: the same by XLA's analysis of the compiled step; None where it was not asked for, or XLA has none.
        counted_bytes: what is kept between the passes, counted on the residuals of `jax.vjp`.
    """

    parts: tuple[Part, ...]
    peak_bytes: int
    compiled: CompiledBytes | None
    counted_bytes: int

    @property
    def kept_bytes(self) -> int:
        """What is kept between the passes, predicted; arguments that the backward pass reads are kept too."""
        return sum(part.bytes for part in self.parts if part.kept)

    @property
    def offloaded_bytes(self) -> int:
        """What of it is kept in the host's memory."""
        return sum(part.bytes for part in self.parts if part.offloaded)

    def total(self, category: Category, *, per_example: bool) -> int:
        """The bytes of a category that grow with the number of examples, or those that do not."""
        return sum(part.bytes for part in self.parts if (part.category, part.per_example) == (category, per_example))


@dataclass(frozen=True)
class KeptParts:
    """What is kept: which of the arguments, by their places, and which parts beside them."""

    arguments: set[str]
    others: list[Part]


def predict_kept(cell: Any, arguments: Any, length: int, memory: Memory, engine: str) -> KeptParts | None:
    """What the trace of one step says is kept; None where it does not tell."""
    found: list[KeptParts] = []

    def look(params: Any, carry: Any, xs: Any) -> None:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            return checks.carry_and_output(cell(params, carry, x))

        x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)
        overview = look_over(step, carry, x)
        if overview.has_side_effects:  # Then scan runs it as under memory=None.
            return
        kept = kept_sizes(step, carry, xs, length=length, memory=memory, names=overview.names, engine=engine)
        if kept is not None:
            places = _Places((params, carry, xs), overview.y)
            found.append(places.parts(kept, length, memory, overview.names))

    jax.eval_shape(look, *arguments)
    return found[0] if found else None


class _Places:
    """What to call the values that are kept of a scan, while it is being traced."""

    def __init__(self, arguments: tuple[Any, Any, Any], y: Any) -> None:
        _, carry, xs = (_places(root, tree) for root, tree in zip(_ROOTS, arguments, strict=True))
        self._of_argument = {id(leaf): place for place, leaf in argument_places(arguments)}
        self._carry, self._xs = [place for place, _ in carry], [place for place, _ in xs]
        self._ys = [place for place, _ in _places("ys", y)]

    def parts(self, kept: Iterable[Kept], length: int, memory: Memory, names: Names) -> KeptParts:
        """The parts that are kept, those of one name together, and the names that are not."""
        arguments: set[str] = set()
        parts: dict[str, Part] = {}
        for one in kept:
            place = self._argument(one)
            if place is not None:
                arguments.add(place)
                continue
            part = self._part(one, length, memory)
            if part.name in parts:
                part = replace(part, bytes=part.bytes + parts[part.name].bytes)
            parts[part.name] = part
        staying = frozenset() if memory.segment else kept_names(memory, names)
        again = [
            f'"{name}", computed again' for name in names.known if name not in staying and f'"{name}"' not in parts
        ]
        return KeptParts(arguments, [*parts.values(), *(_kept(name, 0) for name in again)])

    def _argument(self, kept: Kept) -> str | None:
        """The argument that a kept value is, if it is one."""
        if kept.source == "constant":
            return self._of_argument.get(id(kept.of))
        places = {"initial carry": self._carry, "x": self._xs}.get(kept.source)
        return None if places is None else places[kept.of]

    def _part(self, kept: Kept, length: int, memory: Memory) -> Part:
        if kept.source == "constant":
            return _closed_over(kept.nbytes)
        if kept.source == "name":
            return _kept(f'"{kept.of}"', kept.nbytes, offloaded=kept.of in memory.offload)
        if kept.source == "y":
            return _kept(f"{self._ys[kept.of]}, kept", kept.nbytes)
        times = "every step" if kept.times == length else f"{kept.times} of the steps"
        return _kept(f"{self._carry[kept.of]} before {times}", kept.nbytes)


def count_kept(run: Callable[..., Any], arguments: Any) -> KeptParts:
    """What autodiff keeps: the arguments among its residuals, and all others as one part."""
    leaves, structure = jax.tree.flatten(arguments)

    def residuals(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(jax.vjp(run, *jax.tree.unflatten(structure, leaves))[1])

    program = trace(residuals, *leaves)
    place_of = dict(zip(program.inputs, [place for place, _ in argument_places(arguments)], strict=True))
    arguments_kept = {place_of[atom] for atom in program.outputs if atom in place_of}
    made = sum(_nbytes(atom) for atom in program.outputs if isinstance(atom, Value) and atom not in place_of)
    constants = sum(_nbytes(atom) for atom in program.outputs if not isinstance(atom, Value))
    closed_over = [_closed_over(constants)] if constants else []
    return KeptParts(arguments_kept, [*closed_over, _kept("what autodiff keeps", made)])


def inference(run: Callable[..., Any], arguments: Any, results: Any, *, compile: bool) -> PhaseMemory:
    """What the forward pass alone takes."""
    structure = jax.tree.structure(arguments)

    def forward(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(run(*jax.tree.unflatten(structure, leaves)))

    given = _argument_parts(arguments)
    returned = [
        Part("last carry", "outputs", _tree_bytes(results[0]), True, "working variable"),
        Part("ys", "outputs", _tree_bytes(results[1]), True, "working variable"),
    ]
    return _phase(forward, arguments, [*given, *returned], [], 0, compile=compile)


def training(
    run: Callable[..., Any], arguments: Any, kept: KeptParts, counted: int, optimizer: Any, *, compile: bool
) -> PhaseMemory:
    """What the gradient step takes."""
    structure = jax.tree.structure(arguments)
    floats = [index for index, leaf in enumerate(jax.tree.leaves(arguments)) if _is_float(leaf)]

    def gradients(*leaves: Any) -> list[Any]:
        def loss(*some: Any) -> Any:
            given = list(leaves)
            for index, leaf in zip(floats, some, strict=True):
                given[index] = leaf
            results = jax.tree.leaves(run(*jax.tree.unflatten(structure, given)))
            return sum((_square(leaf) for leaf in results if _is_float(leaf)), jnp.zeros(()))

        value, pull = jax.vjp(loss, *(leaves[index] for index in floats))
        return list(pull(jnp.ones_like(value)))

    returned = [_gradient_part(root, tree) for root, tree in zip(_ROOTS, arguments, strict=True)]
    given = [*_argument_parts(arguments, kept.arguments), *returned]
    phase = _phase(gradients, arguments, given, kept.others, counted, compile=compile)
    if optimizer is None:
        return phase
    state = _tree_bytes(jax.eval_shape(optimizer.init, arguments[0]))
    return replace(phase, parts=(*phase.parts, Part("optimizer state", "optimizer", state, False, "standard")))


def _phase(
    function: Callable[..., Sequence[Any]],
    arguments: Any,
    given: Sequence[Part],
    kept: Sequence[Part],
    counted: int,
    *,
    compile: bool,
) -> PhaseMemory:
    """Arguments and results, what is kept beside them, and what is left of the need for scratch."""
    leaves = jax.tree.leaves(arguments)
    need = predict_temporary(function, *leaves, fixed=len(jax.tree.leaves(arguments[0])))
    # XLA need not hold all that is kept at once: what no gradient reads, it drops.
    cached = sum(part.bytes for part in kept if part.role == "kept" and (host_is_device() or not part.offloaded))
    scratch = max(0, need.nbytes - cached)
    fixed = min(need.fixed, scratch)
    parts = [
        *given,
        *kept,
        Part("scratch, of parameters alone", "scratch", fixed, False, "working fixed"),
        Part("scratch", "scratch", scratch - fixed, True, "working variable"),
    ]
    peak = sum(part.bytes for part in given) + need.nbytes
    return PhaseMemory(tuple(parts), peak, _compiled_bytes(function, leaves) if compile else None, counted)


def _compiled_bytes(function: Callable[..., Any], leaves: Sequence[Any]) -> CompiledBytes | None:
    analysis: Any = jax.jit(function).lower(*leaves).compile().memory_analysis()
    if analysis is None:
        return None
    return CompiledBytes(analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes)


def _argument_parts(arguments: Any, kept: Iterable[str] = ()) -> list[Part]:
    return [
        replace(_part_of(root, leaf), name=place, kept=place in kept)
        for root, tree in zip(_ROOTS, arguments, strict=True)
        for place, leaf in _places(root, tree)
    ]


def _gradient_part(root: str, tree: Any) -> Part:
    floats = [leaf for leaf in jax.tree.leaves(tree) if _is_float(leaf)]
    return replace(_part_of(root, floats), name=f"gradient of {root}", role="gradients")


def _part_of(root: str, tree: Any) -> Part:
    """Arrays of the size of an argument."""
    if root == "params":
        return Part(root, "parameters", _tree_bytes(tree), False, "standard")
    return Part(root, "carry and inputs", _tree_bytes(tree), True, "working variable")


def _kept(name: str, nbytes: int, *, offloaded: bool = False) -> Part:
    return Part(name, "kept", nbytes, True, "cached", kept=True, offloaded=offloaded)


def _closed_over(nbytes: int) -> Part:
    return Part("what the cell closes over", "what the cell closes over", nbytes, False, "standard", kept=True)


_ROOTS = ("params", "carry", "xs")


def _places(root: str, tree: Any) -> list[tuple[str, Any]]:
    return [(root + jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def argument_places(arguments: Any) -> list[tuple[str, Any]]:
    """The leaves of params, carry and xs, each with its place."""
    return [one for root, tree in zip(_ROOTS, arguments, strict=True) for one in _places(root, tree)]


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _square(leaf: Any) -> Any:
    return jnp.sum((leaf * leaf.conj()).real, dtype=jnp.float32)


def _tree_bytes(tree: Any) -> int:
    return sum(map(_nbytes, jax.tree.leaves(tree)))


def _nbytes(leaf: Any) -> int:
    return prod(leaf.shape) * int(leaf.dtype.itemsize)
