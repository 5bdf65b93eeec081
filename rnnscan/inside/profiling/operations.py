"""The operations of a compiled program that a profiler sees: their scopes, and the loops around them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from rnnscan._util.hlo import Instruction, Program
from rnnscan.inside.profiling.scopes import Scope, scope_of


# They run other operations, which have times of their own.
_CONTAINERS = frozenset({"while", "call", "conditional", "async-start"})


@dataclass(frozen=True)
class Loop:
    """A loop of a compiled program.

    Attributes:
        scope: the scope that all of its operations share.
        iterations: how often its body runs each time; 0 if that is not known.
    """

    scope: Scope
    iterations: int


@dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes:
        scope: where it comes from.
        loops: the loops around it, by the names of their operations, the innermost last.
        is_container: whether it is a loop or a call, which runs others.
    """

    scope: Scope
    loops: tuple[str, ...]
    is_container: bool


class Operations(Mapping[str, Operation]):
    """The operations of a program, by name.

    Args:
        text: the text of the compiled program.
    """

    def __init__(self, text: str) -> None:
        self._program = Program.parse(text)
        self._loops: dict[str, Loop] = {}
        self._operations = dict(self._placed(self._program.entry, ()))

    def __getitem__(self, name: str) -> Operation:
        """The operation of a name, also in the spelling of a kernel on a GPU."""
        return self._operations[name] if name in self._operations else self._of_kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def loops(self) -> dict[str, Loop]:
        """The loops, by the names of their operations, outer ones first."""
        return self._loops

    def is_step_by_step(self, name: str) -> bool:
        """Whether an operation runs in a loop without loops in it, or is one. Else it runs for many steps at once."""
        loops = (*self[name].loops, name) if name in self._loops else self[name].loops
        return bool(loops) and loops[-1] not in self._outer_loops

    @cached_property
    def _outer_loops(self) -> frozenset[str]:
        return frozenset(outer for name in self._loops for outer in self._operations[name].loops)

    @cached_property
    def _of_kernels(self) -> dict[str, Operation]:
        # A kernel `loop_add_fusion_2` is the operation `loop_add_fusion.2`.
        return {re.sub(r"\W", "_", name): operation for name, operation in self._operations.items()}

    def _placed(self, computation: str, loops: tuple[str, ...]) -> Iterator[tuple[str, Operation]]:
        for one in self._program.computations[computation]:
            scope, is_container = self._scope(one), one.kind in _CONTAINERS
            if loops and not scope.path:  # A copy or a counter of XLA's.
                scope = self._loops[loops[-1]].scope
            yield one.name, Operation(scope, loops, is_container)
            if one.kind == "while":
                self._loops[one.name] = Loop(scope, self._program.trips(one))
            if is_container:
                for callee in one.callees:
                    yield from self._placed(callee, (*loops, one.name) if one.kind == "while" else loops)

    def _scope(self, one: Instruction) -> Scope:
        """The scope of an operation. XLA names a fusion after one of its operations, which may have none."""
        if one.kind == "while":
            paths = [scope.path for callee in one.callees for scope in self._scopes_in(callee) if scope.path]
            own = scope_of(one.origin)
            return Scope(_shared(paths) or own.path, own.is_backward)
        own = scope_of(one.origin)
        if own.path or not one.callees:
            return own
        inside = Counter(scope for callee in one.callees for scope in self._scopes_in(callee) if scope.path)
        return inside.most_common(1)[0][0] if inside else own

    def _scopes_in(self, computation: str) -> list[Scope]:
        if computation not in self._scopes:
            inside = [*map(self._scope, self._program.computations.get(computation, ()))]
            self._scopes[computation] = inside
        return self._scopes[computation]

    @cached_property
    def _scopes(self) -> dict[str, list[Scope]]:
        return {}


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The beginning that paths share."""
    return tuple(words[0] for words in takewhile(lambda words: len({*words}) == 1, zip(*paths, strict=False)))
