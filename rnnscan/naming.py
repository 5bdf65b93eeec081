"""name(): label an intermediate value, so that a memory choice can speak of it.

What a label does depends on who is tracing the cell:

- outside rnnscan, it is `jax.ad_checkpoint.checkpoint_name`, and JAX's own checkpoint policies see it;
- while rnnscan looks a step over (`trace_step`), it is only written down;
- while rnnscan traces a cell for a memory choice (`emitting`), the labels that the choice keeps are emitted, the
  others are not. A label that is emitted where nothing reads it costs memory: autodiff keeps the unlabelled
  producer *and* the labelled copy (`docs/decisions.md`, "Names are emitted on demand").
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
    """What `name` does while a step is traced.

    Attributes:
        depth: how many scans the step runs in, beyond its own.
    """

    depth: int

    def read(self, leaf: Any, label: str) -> Any:
        """Take notice of a labelled leaf, and return what stands for it from here on."""

    def forget(self) -> None:
        """Let go of all that was read."""


# A jit-cache-sensitive context: a function that the cell jits by itself is traced anew for every reader, so a trace
# that was made under one memory choice is never reused under another.
_reader = jax.make_user_context(None)


def name(value: _Value, label: str) -> _Value:
    """Label an intermediate value of a cell, so that `Memory` can keep, recompute or offload it.

    The value is returned unchanged. Under `rnnscan.scan` and `rnnscan.recurrent_net` the labels that
    `Memory.recompute` lists are computed again on the backward pass and all others are kept (`Memory`).
    Outside rnnscan the label is the one of `jax.ad_checkpoint.checkpoint_name`.

    Args:
        value: an array or a pytree of arrays; every leaf gets the label.
        label: the name. One name may be used at several places: a choice then speaks of all of them.

    Returns:
        `value`.

    Raises:
        TypeError: if the label is not a string that holds something.

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
    """The labels that one step of a cell uses, in the order of the calls; a position counts labelled leaves.

    Attributes:
        labels: the label at each position.
        values: at each position, the first position that labels the same value.
        held: positions whose value is an input or a carry. The loop keeps these by itself, so a label on one would keep
            it twice.
        depth: how many scans the step runs in, beyond its own.
    """

    labels: tuple[str, ...] = ()
    values: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()
    depth: int = 0

    @property
    def known(self) -> tuple[str, ...]:
        """The distinct labels, in the order of their first use."""
        return tuple(dict.fromkeys(self.labels))

    def emitted(self, kept: frozenset[str]) -> dict[int, str]:
        """The values to label where the labels `kept` are kept: position of the first label -> the label to emit.

        A value is kept if any of its labels is, and then once, under the first of them.
        """
        emitted: dict[int, str] = {}
        for label, value in zip(self.labels, self.values, strict=True):
            if label in kept and value not in self.held:
                emitted.setdefault(value, self.as_emitted(label))
        return emitted

    def as_emitted(self, label: str) -> str:
        """The label as policies see it.

        A cell may run a scan of its own. The names of that one are its own choice's, so they differ from the names of
        the outer choice even where they are spelt alike.
        """
        return "inner scan: " * self.depth + label


class _Notebook:
    """Writes every label down and emits none."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._labels: list[str] = []
        self._leaves: list[Any] = []

    def read(self, leaf: Any, label: str) -> Any:
        self._labels.append(label)
        self._leaves.append(leaf)
        return leaf

    def names(self, given: Any, carry: Any) -> Names:
        """What was written down, where the step was given `given` and returned `carry` as its new carry."""
        first: dict[int, int] = {}
        values = tuple(first.setdefault(id(leaf), position) for position, leaf in enumerate(self._leaves))
        loop = {id(leaf) for leaf in jax.tree.leaves((given, carry))}
        held = frozenset(position for position, leaf in enumerate(self._leaves) if id(leaf) in loop)
        self.forget()
        return Names(tuple(self._labels), values, held, self.depth)

    def forget(self) -> None:
        self._leaves.clear()


class PositionReader:
    """Reads the names of a step that has been looked over; never what the loop keeps by itself.

    A value that has several names is kept once in each trace that names it: a branch of a cond cannot see what was
    named in another. Subclasses say what keeping is.
    """

    def __init__(self, kept: frozenset[str], names: Names) -> None:
        self.depth = names.depth
        self._names = names
        self._to_emit = names.emitted(kept)
        self._read: dict[int, list[tuple[Any, Any]]] = {}
        self._position = 0

    def read(self, leaf: Any, label: str) -> Any:
        """What stands for a labelled leaf."""
        if self._names.labels[self._position : self._position + 1] != (label,):
            raise RuntimeError(
                f"name: a cell must name the same values each time it is traced; got {label!r} where the names were "
                f"{', '.join(map(repr, self._names.labels)) or 'none'} before. A cell is a pure function: what it "
                "does may not depend on what changes between two calls."
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
        """What stands for a value that is kept, from its first label on."""
        raise NotImplementedError

    def forget(self) -> None:
        """Let go of all that was read."""
        self._read.clear()


class _Emitter(PositionReader):
    """Labels what is kept for the policies of `jax.checkpoint`."""

    def keep(self, position: int, leaf: Any, label: str) -> Any:
        return checkpoint_name(leaf, label)


def current_trace() -> Any:
    """What tells the traces of a function, of one that is jitted or vmapped within it, and so on, from each other."""
    return get_opaque_trace_state(convention="flax")


@contextmanager
def reading(reader: Reader) -> Iterator[None]:
    """Trace a step inside this context, and `reader` sees its names."""
    try:
        with _reader(reader):
            yield
    finally:
        # JAX's caches hold on to the reader, as a part of their keys, and must not hold the trace through it.
        reader.forget()


class _Ignorer:
    """Takes no notice of names."""

    depth = 0

    def read(self, leaf: Any, label: str) -> Any:
        return leaf

    def forget(self) -> None:
        pass


@contextmanager
def unnamed() -> Iterator[None]:
    """Trace something inside this context, and its names mean nothing to the step around it."""
    with reading(_Ignorer()):
        yield


@contextmanager
def emitting(kept: frozenset[str], names: Names) -> Iterator[None]:
    """Trace a step inside this context to emit the labels in `kept`, and only those."""
    with reading(_Emitter(kept, names)):
        yield


@dataclass(frozen=True)
class StepInfo:
    """What one abstract trace of a step tells.

    Attributes:
        carry: the shapes of the new carry.
        y: the shapes of y.
        names: the labels that the step uses.
        has_side_effects: whether it does something that must not be done twice; printing for debugging may be.
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
        x: one step's input, of the same.

    Returns:
        What the trace tells.
    """
    outer: Reader | None = _reader.value
    notebook = _Notebook(0 if outer is None else outer.depth + 1)
    names = Names()

    def noted(carry: Any, x: Any) -> tuple[Any, Any]:
        nonlocal names
        new_carry, y = step(carry, x)
        names = notebook.names((carry, x), new_carry)
        return new_carry, y

    with reading(notebook):
        traced, (new_carry, y) = jax.make_jaxpr(noted, return_shape=True)(carry, x)
    # Effects have no public kinds; those of jax.debug say so in their names.
    has_side_effects = any("Debug" not in str(effect) for effect in traced.effects)
    return StepInfo(new_carry, y, names, has_side_effects, frozenset(map(id, traced.consts)))
