"""name(): label an intermediate value, so that a memory choice can refer to it.

A label's effect depends on who traces the cell:

- Outside rnnscan it is `jax.ad_checkpoint.checkpoint_name`, and JAX's own checkpoint policies see it.
- `trace_step` only records it.
- `emitting` emits the labels that a memory choice keeps, and drops the others. An emitted label that no policy reads
  costs memory: autodiff keeps the unlabeled producer *and* the labeled copy (`docs/decisions.md`, "Names are emitted
  on demand").
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import get_opaque_trace_state

from rnnscan._util import effects
from rnnscan._util.sources import named_after
from rnnscan._util.trace_context import trace_context, tracing_with


_Value = TypeVar("_Value")


@runtime_checkable
class Reader(Protocol):
    """The effect of `name` while a step is traced.

    Attributes:
        depth: the number of scans around the step's own.
    """

    depth: int

    def read(self, leaf: Any, label: str) -> Any:
        """Take a labeled leaf, and return its replacement."""

    def forget(self) -> None:
        """Drop references to the leaves."""


# The prefix of a marked value's name in a jaxpr; its position follows.
MARK = "rnnscan mark "


def name(value: _Value, label: str) -> _Value:
    """Label an intermediate value of a cell, so that `Memory` can keep, recompute or offload it.

    The value is returned unchanged. Under `rnnscan.scan` and `rnnscan.recurrent_net` the backward pass recomputes the
    labels in `Memory.recompute` and keeps all others (`Memory`). Outside rnnscan this is
    `jax.ad_checkpoint.checkpoint_name`.

    Args:
        value: an array or a pytree of arrays; every leaf gets the label.
        label: the name. Several values may share it; a choice then applies to all of them.

    Returns:
        `value`.

    Raises:
        TypeError: if the label is not a non-empty string.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def cell(params, carry, x):
        ...     preactivation = rs.name(x @ params["kernel"] + carry @ params["recurrent_kernel"], "preactivation")
        ...     hidden = jnp.tanh(preactivation)
        ...     return hidden, hidden
        >>> params = {"kernel": jnp.ones((3, 4)), "recurrent_kernel": jnp.eye(4)}
        >>> carry, ys = rs.scan(cell, params, jnp.zeros((2, 4)), jnp.ones((5, 2, 3)))
        >>> ys.shape
        (5, 2, 4)
    """
    if not isinstance(label, str) or not label:
        raise TypeError(
            f"name: the label must be a non-empty string; got {label!r}. "
            'Write name(value, "label"): the value comes first, as in jax.ad_checkpoint.checkpoint_name.'
        )
    reader: Reader | None = trace_context().reader
    if reader is None:
        return checkpoint_name(value, label)
    return jax.tree.map(lambda leaf: reader.read(leaf, label), value)


@dataclass(frozen=True)
class Names:
    """The labels of one step of a cell, in call order; a position is the index of a labeled leaf.

    Attributes:
        labels: the label at each position.
        values: at each position, the first position that labels the same value.
        shapes: at each position, the shape of the value there. A `vmap` around it adds axes.
        held: positions whose value is an input or a carry. The loop keeps these already; a label would keep them twice.
        depth: the number of scans around the step's own.
    """

    labels: tuple[str, ...] = ()
    values: tuple[int, ...] = ()
    shapes: tuple[tuple[Any, ...], ...] = ()
    held: frozenset[int] = frozenset()
    depth: int = 0

    @property
    def known(self) -> tuple[str, ...]:
        """The distinct labels, in order of first use."""
        return tuple(dict.fromkeys(self.labels))

    def to_keep(self, kept: frozenset[str]) -> dict[int, str]:
        """The label to keep each value by, by first position. A value with several labels is kept once."""
        label_of: dict[int, str] = {}
        for label, value in zip(self.labels, self.values, strict=True):
            if label in kept and value not in self.held:
                label_of.setdefault(value, label)
        return label_of

    def as_emitted(self, label: str) -> str:
        """The label as policies see it. An inner scan has its own memory choice, so its labels get another spelling."""
        return "inner scan: " * self.depth + label


class _CacheKey:
    """A part of jit's cache key, equal to others of its class and depth as long as neither has labels.

    A function that the cell jits is traced again for every reader that is not equal, so a trace of names made for one
    memory choice is never used for another. A function that was jitted without a label has no marks of its reader, so
    its trace serves them all. A reader with labels equals itself alone: those that it leaves in traces are its own. The
    hash never changes.
    """

    def __init__(self, depth: int, labels: Sequence[str]) -> None:
        self.depth = depth
        self._labels = labels

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, _CacheKey):
            return self is other
        return type(self) is type(other) and self.depth == other.depth and not (self._labels or other._labels)

    def __hash__(self) -> int:
        return hash((type(self), self.depth))


class _Recorder(_CacheKey):
    """Records every label, and marks the labeled value."""

    def __init__(self, depth: int) -> None:
        self._labels: list[str] = []
        super().__init__(depth, self._labels)
        self._values: list[int] = []
        self._shapes: list[tuple[int, ...]] = []
        self._value_of: dict[int, int] = {}
        self._leaves: list[Any] = []  # An id is unique only while its object is alive.

    def read(self, leaf: Any, label: str) -> Any:
        position = len(self._labels)
        value = self._value_of.get(id(leaf), position)
        marked = _mark(leaf, position)
        for same in (leaf, marked):
            self._value_of[id(same)] = value
            self._leaves.append(same)
        self._labels.append(label)
        self._values.append(value)
        self._shapes.append(tuple(marked.shape))
        return marked

    def names(self, arguments: Any, carry: Any) -> Names:
        """The recorded labels of a step with these arguments and this new carry."""
        loop = {self._value_of.get(id(leaf)) for leaf in jax.tree.leaves((arguments, carry))}
        held = frozenset(position for position, value in enumerate(self._values) if value in loop)
        self.forget()
        return Names(tuple(self._labels), tuple(self._values), tuple(self._shapes), held, self.depth)

    def forget(self) -> None:
        self._leaves.clear()
        self._value_of.clear()


def _mark(value: Any, position: int) -> Any:
    """Mark a value in a jaxpr, also within a nested `jit`."""

    def marked(value: Any) -> Any:
        return value

    marked.__name__ = f"{MARK}{position}"
    return jax.jit(marked)(value)


class _Emitter(_CacheKey):
    """Labels the values to keep for the policies of `jax.checkpoint`.

    A value with several names is kept once per trace: a branch of a cond cannot use the other branch's copy.
    """

    def __init__(self, kept: frozenset[str], names: Names) -> None:
        super().__init__(names.depth, names.labels)
        self._names = names
        self._to_keep = names.to_keep(kept)
        self._read: dict[int, list[tuple[Any, Any]]] = {}
        self._position = 0

    def read(self, leaf: Any, label: str) -> Any:
        if self._names.labels[self._position : self._position + 1] != (label,):
            raise RuntimeError(
                f"name: a cell must name the same values in every trace; got {label!r} where the first trace named "
                f"{', '.join(map(repr, self._names.labels)) or 'none'}. Make the cell a pure function."
            )
        value = self._names.values[self._position]
        self._position += 1
        if value not in self._to_keep:
            return leaf
        trace = get_opaque_trace_state(convention="flax")
        for earlier, kept in self._read.setdefault(value, []):
            if earlier == trace:
                return kept
        emitted = checkpoint_name(leaf, self._names.as_emitted(self._to_keep[value]))
        self._read[value].append((trace, emitted))
        return emitted

    def forget(self) -> None:
        self._read.clear()


@contextmanager
def reading(reader: Reader) -> Iterator[None]:
    """Let `reader` see the names of a step that is traced inside this context."""
    try:
        with tracing_with(reader=reader):
            yield
    finally:
        # JAX's caches keep the reader as part of their keys; it must not keep the trace alive.
        reader.forget()


class _Ignorer:
    """Ignores names."""

    depth = 0

    def read(self, leaf: Any, label: str) -> Any:
        return leaf

    def forget(self) -> None:
        pass


_IGNORER = _Ignorer()


@contextmanager
def unnamed() -> Iterator[None]:
    """Hide names inside this context from the step around it."""
    with reading(_IGNORER):
        yield


@contextmanager
def emitting(kept: frozenset[str], names: Names) -> Iterator[None]:
    """Emit only the labels in `kept` of a step that is traced inside this context."""
    with reading(_Emitter(kept, names)):
        yield


@dataclass(frozen=True)
class StepInfo:
    """The result of one abstract trace of a step.

    Attributes:
        carry: the shapes of the new carry.
        y: the shapes of y.
        names: the step's labels.
        effects: the effects for which the operations of the step must stay, in their order (`_util/effects.py`).
        traced: the trace, with every named value marked: `(*carry, *x) -> (*new carry, *y)`.
        has_refs: whether the step is given refs among its inputs, to which it may write.
    """

    carry: Any
    y: Any
    names: Names
    effects: frozenset[Any]
    traced: Any
    has_refs: bool = False

    @property
    def has_side_effects(self) -> bool:
        """Whether the step has effects that must not run twice; debug prints may."""
        return self.has_refs or bool(effects.once(self.effects))


def trace_step(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, x: Any) -> StepInfo:
    """Trace one step without computing it.

    Args:
        step: `(carry, x) -> (carry, y)`.
        carry: a carry, of arrays or `jax.ShapeDtypeStruct`.
        x: one step's input, likewise.
    """
    recorder, names = _new_recorder(), Names()

    def recorded(carry: Any, x: Any) -> tuple[Any, Any]:
        nonlocal names
        new_carry, y = step(carry, x)
        names = recorder.names((carry, x), new_carry)
        return new_carry, y

    with reading(recorder):
        recorded = named_after(recorded, step)
        traced, (new_carry, y) = jax.make_jaxpr(recorded, return_shape=True)(carry, x)
    return StepInfo(new_carry, y, names, effects.ordered(traced.effects), traced)


def evaluate_step(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, x: Any) -> tuple[StepInfo, tuple[Any, Any]]:
    """Run one step on values.

    Args:
        step: `(carry, x) -> (carry, y)`.
        carry: a carry, of arrays.
        x: one step's input, likewise.

    Returns:
        What `trace_step` tells of a step that has these results; and the results.
    """
    recorder = _new_recorder()
    with reading(recorder):
        results = step(carry, x)
        names = recorder.names((carry, x), results[0])
    info = trace_step(lambda carry, x: results, carry, x)
    return replace(info, names=names), results


def _new_recorder() -> _Recorder:
    outer: Reader | None = trace_context().reader
    return _Recorder(0 if outer is None else outer.depth + 1)
