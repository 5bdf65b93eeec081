"""The rule of memory: which values are kept between the forward and the backward pass.

Between the forward and the backward pass rnnscan keeps the inputs, the outputs and carries that it needs, and every
*named* intermediate that is not in `recompute`. Everything else is recomputed. On a CPU, a cell without names leaves it
to the engine to keep a few values that take long to recompute, and a small loop keeps more (`docs/memory.md`).

The rule is an allow-list. JAX's deny-list policies silently keep the unnamed producer of a value and all values that
follow, or everything (`docs/decisions.md`, "An allow-list").
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import isqrt
from typing import Any, Literal

import jax

from rnnscan._util.byte_sizes import budget_bytes
from rnnscan._util.messages import is_count, listing, nearest
from rnnscan._util.trace_context import trace_context, tracing_with
from rnnscan.checkpointing import NestedScan, SubScan
from rnnscan.naming import Names


@dataclass(frozen=True, repr=False)
class Memory:
    """A memory choice: the values to keep between the forward and the backward pass.

    `Memory()` keeps every named intermediate, and `Memory(recompute="all")` none. Of a cell without names `Memory()`
    may keep up to 2 MiB of values that take long to recompute, on a CPU. If all residuals take at most 1 MiB there, it
    keeps those of a small loop that take longer to recompute than to copy, and all of a step that is not split.
    `memory=None` is plain autodiff of `lax.scan`, the baseline.

    Args:
        recompute: names (`rnnscan.name`) to recompute on the backward pass instead of keeping them, or `"all"`.
        offload: names to keep in host memory (JAX's `pinned_host`). Take gradients of gradients forward over reverse
            then: JAX cannot differentiate offloaded values by reverse over reverse.
        segment: keep the carry only before every `segment`-th step, and run each segment forward again on the
            backward pass; named values are kept for one segment at a time. A shorter sequence is one segment. A tuple
            nests, from the longest to the shortest: `(1000, 30)`. `"sqrt"` is the square root of the length, rounded
            up. A schedule of `rnnscan.checkpointing.nested` runs several scans in a row, which takes fewer evaluations
            for the same number of carries. Segments should divide the length: a remainder is cut out and copied.
        chunk: the number of steps to batch parallel work over; None: chosen. The lax engine has no chunks.

    Raises:
        TypeError: if a field has a wrong type.
        ValueError: if a field has a wrong value, or fields contradict each other.

    Example:
        >>> import rnnscan as rs
        >>> rs.Memory(recompute=("gates",), segment="sqrt")
        Memory(recompute=('gates',), segment='sqrt')
        >>> rs.Memory(segment="sqrt").sub_scans(1000)
        (SubScan(steps=1000, segment=(32,)),)
        >>> rs.Memory(segment=rs.checkpointing.nested(1000, slots=50)).sub_scans(1000)[0]
        SubScan(steps=400, segment=(40,))

    Source: `recompute` is Caffe2's `recurrent_net(recompute_blobs_on_backward=...)`; segments of the square root of the
    length are Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """

    recompute: tuple[str, ...] | Literal["all"] = ()
    offload: tuple[str, ...] = ()
    segment: int | Literal["sqrt"] | tuple[int, ...] | NestedScan | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.recompute != "all":
            object.__setattr__(self, "recompute", _names("recompute", self.recompute, ' or recompute="all"'))
        object.__setattr__(self, "offload", _names("offload", self.offload))
        if isinstance(self.segment, list):
            object.__setattr__(self, "segment", tuple(self.segment))
        _check_segment(self.segment)
        if self.chunk is not None and not is_count(self.chunk):
            raise ValueError(
                f"Memory: `chunk` must be a number of steps of at least 1, or None for a default; got {self.chunk!r}."
            )
        self._check_offload()

    def __repr__(self) -> str:
        """The fields that differ from the default."""
        chosen = [(field.name, getattr(self, field.name)) for field in fields(self)]
        defaults = {field.name: field.default for field in fields(self)}
        shown = ", ".join(f"{name}={value!r}" for name, value in chosen if value != defaults[name])
        return f"{type(self).__name__}({shown})"

    @staticmethod
    def fit(budget: int | str, *, last_only: bool = False) -> "MemoryBudget":
        """A budget in place of a memory choice. `scan` plans the choice while it is traced, as `rnnscan.plan` does.

        The budget is for the peak memory of the scan and its gradient, in parameters, carry and inputs, besides
        arguments and results. Each trace of the scan compiles some choices; to plan once and see the choice, call
        `rnnscan.plan`. Under `vmap` the budget is per mapped element. Inside `shard_map` and `pmap`, and on meshes with
        explicit axes, it is for one device. On meshes with automatic axes the trace does not know the shardings, and
        the budget is for the whole batch.

        Args:
            budget: a number of bytes, or a string such as "512MiB" or "2GB".
            last_only: whether the loss depends on the last carry alone, so that outputs need not be kept.

        Returns:
            A value for `memory` of `scan`, `recurrent_net` and nets.

        Raises:
            ValueError: if the budget is not a size. `scan` raises it if nothing fits.

        Example:
            >>> import rnnscan as rs
            >>> rs.Memory.fit("1MiB").bytes
            1048576
        """
        return MemoryBudget(budget_bytes(budget, "Memory.fit"), last_only)

    def _check_offload(self) -> None:
        if not self.offload:
            return
        if self.segment is not None:
            raise ValueError(
                f"Memory: `offload` must be empty with `segment`, because named values do not outlive a segment; got "
                f"offload={self.offload!r} and segment={self.segment!r}. Drop one of the two."
            )
        both = self.offload if self.recompute == "all" else [name for name in self.offload if name in self.recompute]
        if both:
            raise ValueError(
                f"Memory: a name is either recomputed or kept in host memory; got {listing(both)} in `offload` "
                f"and recompute={self.recompute!r}. Take it out of one of the two."
            )

    @property
    def asks_to_recompute(self) -> bool:
        """Whether it names work to do again, or values to move. The default names none."""
        return bool(self.recompute or self.segment is not None or self.offload)

    def sub_scans(self, length: Any) -> tuple[SubScan, ...]:
        """The scans that run a sequence one after the other, and the segments of each.

        Args:
            length: T, the number of steps.

        Returns:
            One scan; more for a schedule.

        Raises:
            ValueError: if the length is not known when the program is traced, or a schedule has another length.
        """
        if not is_count(length, least=0):
            raise ValueError(
                f"scan: with `segment`, the number of steps must be known when the program is traced; got {length} "
                f"and segment={self.segment!r}. Leave segment=None for a symbolic dimension of jax.export."
            )
        if self.segment is None:
            return (SubScan(length, None),)
        if isinstance(self.segment, NestedScan):
            if self.segment.steps != length:
                raise ValueError(
                    f"scan: a schedule in `segment` must have as many steps as the sequence; got a schedule of "
                    f"{self.segment.steps} steps, and T = {length}. Use rnnscan.checkpointing.nested({length}, ...)."
                )
            return self.segment.sub_scans or (SubScan(0, None),)
        if not length:
            return (SubScan(0, None),)
        if self.segment == "sqrt":
            return (SubScan(length, (isqrt(length - 1) + 1,)),)
        return (SubScan(length, self.segment if isinstance(self.segment, tuple) else (self.segment,)),)


@dataclass(frozen=True)
class MemoryBudget:
    """A budget in place of a memory choice, from `Memory.fit`. `scan` plans a `Memory` to fit it.

    Attributes:
        bytes: the budget.
        last_only: whether the loss depends on the last carry alone.
    """

    bytes: int
    last_only: bool = False


def never_differentiated() -> AbstractContextManager[None]:
    """A context for traces without a backward pass, such as those of an exported program."""
    return tracing_with(is_differentiated=False)


def without_training(memory: Memory | MemoryBudget | None) -> Memory | MemoryBudget | None:
    """The memory choice in force: under `never_differentiated` one without segments, offloading or a budget."""
    if trace_context().is_differentiated or memory is None:
        return memory
    return Memory() if isinstance(memory, MemoryBudget) else replace(memory, segment=None, offload=())


def check_names(memory: Memory, names: Names) -> None:
    """Reject names that the cell does not define.

    JAX would not: with its policies, a misspelt name silently recomputes, or keeps, everything.
    """
    chosen = {"recompute": () if memory.recompute == "all" else memory.recompute, "offload": memory.offload}
    for field, wanted in chosen.items():
        for name in wanted:
            if name not in names.known:
                raise ValueError(
                    f"scan: every name in `{field}` must be one that the cell gives to an intermediate with "
                    f"rnnscan.name; got {name!r}, and the cell names {listing(names.known)}."
                    f"{nearest(name, names.known)}"
                )


def kept_names(memory: Memory, names: Names) -> frozenset[str]:
    """The names of the kept values, on the device or on the host."""
    if memory.recompute == "all":
        return frozenset()
    return frozenset(names.known).difference(memory.recompute)


def checkpoint_policy(memory: Memory, names: Names) -> Callable[..., Any]:
    """The rule of memory as a policy of `jax.checkpoint`."""
    kept = kept_names(memory, names).difference(memory.offload)
    on_device, on_host = ([*map(names.as_emitted, sorted(group))] for group in (kept, memory.offload))
    if not on_host:
        return jax.checkpoint_policies.save_only_these_names(*on_device)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=on_device,
        names_which_can_be_offloaded=on_host,
        offload_src="device",
        offload_dst="pinned_host",
    )


def _names(field: str, value: Any, otherwise: str = "") -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError(
            f"Memory: `{field}` must be a tuple of names; got the string {value!r}. "
            f"Write {field}=({value!r},){otherwise}."
        )
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"Memory: `{field}` must be a tuple of names{otherwise}; got {value!r}.")
    return tuple(value)


def _check_segment(segment: Any) -> None:
    if segment is None or segment == "sqrt" or is_count(segment) or isinstance(segment, NestedScan):
        return
    if not isinstance(segment, tuple) or not segment or not all(map(is_count, segment)):
        raise ValueError(
            "Memory: `segment` must be a number of steps of at least 1, a tuple of such numbers, "
            f'"sqrt", a schedule of rnnscan.checkpointing.nested or None; got {segment!r}.'
        )
    if any(inner >= outer for outer, inner in pairwise(segment)):
        raise ValueError(
            "Memory: nested segments must get shorter from left to right, because each is cut into the next; "
            f"got segment={segment!r}."
        )
