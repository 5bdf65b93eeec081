"""name(): label an intermediate value, so that a memory choice can refer to it.

A label's effect depends on who traces the cell:

- Outside rnnscan it is `jax.ad_checkpoint.checkpoint_name`, and JAX's own checkpoint policies see it.
- `trace_step` only records it.
- `emitting` emits the labels that a memory choice keeps, and drops the others. An emitted label that no policy reads
  costs memory: autodiff keeps the unlabelled producer *and* the labelled copy (`docs/decisions.md`, "Names are emitted
  on demand").
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import get_opaque_trace_state


_Value = TypeVar("_Value")


@runtime_checkable
class Reader(Protocol):
    """The effect of `name` while a step is traced.

    Attributes:
        depth: the number of scans around the step's own.
    """

    depth: int

    def read(self, leaf: Any, label: str) -> Any:
        """Take a labelled leaf, and return its replacement."""

    def forget(self) -> None:
        """Drop references to the leaves."""


# Part of jit's cache key: a function that the cell jits is retraced for every reader, so a trace made for one memory
# choice is never reused for another.
_reader = jax.make_user_context(None)


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
    reader: Reader | None = _reader.value
    if reader is None:
        return checkpoint_name(value, label)
    return jax.tree.map(lambda leaf: reader.read(leaf, label), value)


@dataclass(frozen=True)
class Names:
    """The labels of one step of a cell, in call order; a position is the index of a labelled leaf.

    Attributes:
        labels: the label at each position.
        values: at each position, the first position that labels the same value.
        held: positions whose value is an input or a carry. The loop keeps these already; a label would keep them twice.
        depth: the number of scans around the step's own.
    """

    labels: tuple[str, ...] = ()
    values: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()
    depth: int = 0

    @property
    def known(self) -> tuple[str, ...]:
        """The distinct labels, in order of first use."""
        return tuple(dict.fromkeys(self.labels))

    def emitted(self, kept: frozenset[str]) -> dict[int, str]:
        """The labels to emit to keep `kept`, by first position. A value with several labels is kept once."""
        emitted: dict[int, str] = {}
        for label, value in zip(self.labels, self.values, strict=True):
            if label in kept and value not in self.held:
                emitted.setdefault(value, self.as_emitted(label))
        return emitted

    def as_emitted(self, label: str) -> str:
        """The label as policies see it. An inner scan has its own memory choice, so its labels get another spelling."""
        return "inner scan: " * self.depth + label


class _Recorder:
    """Records every label and emits none."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._labels: list[str] = []
        self._leaves: list[Any] = []

    def read(self, leaf: Any, label: str) -> Any:
        self._labels.append(label)
        self._leaves.append(leaf)
        return leaf

    def names(self, given: Any, carry: Any) -> Names:
        """The recorded labels of a step with the arguments `given` and the new carry `carry`."""
        first: dict[int, int] = {}
        values = tuple(first.setdefault(id(leaf), position) for position, leaf in enumerate(self._leaves))
        loop = {id(leaf) for leaf in jax.tree.leaves((given, carry))}
        held = frozenset(position for position, leaf in enumerate(self._leaves) if id(leaf) in loop)
        self.forget()
        return Names(tuple(self._labels), values, held, self.depth)

    def forget(self) -> None:
        self._leaves.clear()


class PositionReader:
    """Keeps the named values of a step that `trace_step` has recorded, except those that the loop keeps already.

    A value with several names is kept once per trace: a branch of a cond cannot use the other branch's copy. Subclasses
    define `keep`.
    """

    def __init__(self, kept: frozenset[str], names: Names) -> None:
        self.depth = names.depth
        self._names = names
        self._to_emit = names.emitted(kept)
        self._read: dict[int, list[tuple[Any, Any]]] = {}
        self._position = 0

    def read(self, leaf: Any, label: str) -> Any:
        """Keep a labelled leaf if its label is kept, and return its replacement."""
        if self._names.labels[self._position : self._position + 1] != (label,):
            raise RuntimeError(
                f"name: a cell must name the same values in every trace; got {label!r} where the first trace named "
                f"{', '.join(map(repr, self._names.labels)) or 'none'}. Make the cell a pure function."
            )
        value = self._names.values[self._position]
        self._position += 1
        if value not in self._to_emit:
            return leaf
        trace = current_trace()
        for earlier, kept in self._read.setdefault(value, []):
            if earlier == trace:
                return kept
        self._read[value].append((trace, self.keep(value, leaf, self._to_emit[value])))
        return self._read[value][-1][1]

    def keep(self, position: int, leaf: Any, label: str) -> Any:
        """Keep a value under its first label, and return its replacement."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop references to the leaves."""
        self._read.clear()


class _Emitter(PositionReader):
    """Labels kept values for the policies of `jax.checkpoint`."""

    def keep(self, position: int, leaf: Any, label: str) -> Any:
        return checkpoint_name(leaf, label)


def current_trace() -> Any:
    """An identity of the current trace: an inner jit or vmap has another."""
    return get_opaque_trace_state(convention="flax")


@contextmanager
def reading(reader: Reader) -> Iterator[None]:
    """Let `reader` see the names of a step that is traced inside this context."""
    try:
        with _reader(reader):
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


@contextmanager
def unnamed() -> Iterator[None]:
    """Hide names inside this context from the step around it."""
    with reading(_Ignorer()):
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
        has_side_effects: whether the step has effects that must not run twice; debug prints may.
        closed_over: the `id` of each array that the step closes over.
    """

    carry: Any
    y: Any
    names: Names
    has_side_effects: bool
    closed_over: frozenset[int]


def trace_step(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, x: Any) -> StepInfo:
    """Trace one step without computing it.

    Args:
        step: `(carry, x) -> (carry, y)`.
        carry: a carry, of arrays or `jax.ShapeDtypeStruct`.
        x: one step's input, likewise.
    """
    outer: Reader | None = _reader.value
    recorder = _Recorder(0 if outer is None else outer.depth + 1)
    names = Names()

    def recorded(carry: Any, x: Any) -> tuple[Any, Any]:
        nonlocal names
        new_carry, y = step(carry, x)
        names = recorder.names((carry, x), new_carry)
        return new_carry, y

    with reading(recorder):
        traced, (new_carry, y) = jax.make_jaxpr(recorded, return_shape=True)(carry, x)
    # Effects have no public type; those of jax.debug have it in their names.
    has_side_effects = any("Debug" not in str(effect) for effect in traced.effects)
    return StepInfo(new_carry, y, names, has_side_effects, frozenset(map(id, traced.consts)))
