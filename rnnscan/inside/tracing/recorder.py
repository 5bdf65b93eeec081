"""Records the named values of a step and the scans of a function, and marks them in the jaxpr that is traced."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.inside.tracing.marks import mark, marks_in
from rnnscan.inside.tracing.replay import Place, Replay
from rnnscan.inside.tracing.sites import Level, Site
from rnnscan.naming import name, reading
from rnnscan.paths import current_path, paths_from
from rnnscan.scan_observer import observing_scans


# Why the names of some functions cannot be traced.
STOPS_BY_A_CONDITION = (
    "`rs.while_net`, `rs.scan_until` and `rs.decode` stop by a condition, so that their number of steps is not known"
)

_owners = count()


@dataclass(frozen=True)
class Choice:
    """The values to trace.

    Attributes:
        sites: their sites; None: all.
        steps: the steps of the outermost scans, in order; None: all.
        rows: the rows; None: all.
        cotangents: whether cotangents are wanted.
    """

    sites: frozenset[Site] | None = None
    steps: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None
    cotangents: bool = False

    def has(self, site: Site) -> bool:
        """Whether a site is wanted, or may become one that is."""
        return self.sites is None or any(site.may_become(each) for each in self.sites)


@dataclass(frozen=True)
class ScanFacts:
    """What a choice is checked against.

    Attributes:
        levels: the scan, after those around it.
        length: T.
        rows: N; None: there is no batch axis.
        reverse: whether it runs from the last step to the first.
    """

    levels: tuple[Level, ...]
    length: int
    rows: int | None
    reverse: bool


@dataclass(frozen=True)
class _Mark:
    """A marked value of some rank. A perturbation is zeros, of which the loop reads one step at each step."""

    site: Site
    rank: int
    is_name: bool = False
    is_perturbation: bool = False


@runtime_checkable
class RunScan(Protocol):
    """Runs a scan that a recorder observes."""

    def __call__(
        self, recorder: "Recorder", level: Level, cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Run it, and mark its values in the recorder."""
        ...


class Recorder:
    """Records one trace of a function, or of a step. JAX may keep it as part of a cache's key: it keeps no arrays.

    Attributes:
        choice: the values to trace.
        levels: the scans around; empty for a function.
        scans: facts of the function's scans.
        untraced: sites that cannot be traced, and why.
        hidden: sites whose cotangents a custom derivative hides.
        depth: as in `rnnscan.naming.Reader`.
    """

    def __init__(self, choice: Choice, run_scan: RunScan, levels: tuple[Level, ...] = ()) -> None:
        self.choice = choice
        self.levels = levels
        self.run_scan = run_scan
        self.scans: list[ScanFacts] = []
        self.untraced: dict[Site, str] = {}
        self.hidden: set[Site] = set()
        self.depth = len(levels)
        self._owner = next(_owners)
        self._marks: list[_Mark] = []
        self._names = self._calls = 0
        self._base: tuple[str, ...] = ()

    def read(self, leaf: Any, label: str) -> Any:
        """Mark a named value of a step."""
        site = Site(self.levels, self._parts(), label, "name", self._names)
        self._names += 1
        leaf = jnp.asarray(leaf)
        return self._mark(leaf, _Mark(site, leaf.ndim, is_name=True))

    def forget(self) -> None:
        """Nothing is kept."""

    def scan(self, cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        """Run a scan of the function, and mark its values."""
        level = Level(self._parts(), self._calls)
        self._calls += 1
        return self.run_scan(self, level, cell, params, carry, xs, options)

    def loop(self, function: str, step: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Take note of the names in a loop that stops by a condition."""
        if self.levels and function == "decode":
            return  # It runs a plain `lax.while_loop`: `read` has marked its names.
        reader = _Names(self)
        with suppress(Exception), reading(reader):  # The loop raises it again, with its own message.
            jax.eval_shape(step, *arguments)
        for parts, label in reader.found:
            site = Site(self.levels, parts, label, "name", self._names)
            self._names += 1
            self.untraced[site.repeated(0)] = f"it is within `rs.{function}`: {STOPS_BY_A_CONDITION}"

    def mark_value(self, site: Site, value: Any) -> None:
        """Mark the stacked values of a scan's site."""
        self._mark(value, _Mark(site, value.ndim))

    def perturbation(self, site: Site, zeros: Any, like: Any) -> Any:
        """Zeros to add to the values of a site. Where `vmap` maps one of the arrays `like`, it maps them too."""
        not_equal = [(leaf != leaf).any() for leaf in jax.tree.leaves(like) if _is_number(leaf)]
        for is_nan in not_equal:
            zeros = lax.select(is_nan, zeros, zeros)
        return self._mark(zeros, _Mark(site, zeros.ndim, is_perturbation=True))

    def trace(self, function: Callable[..., Any], *arguments: Any) -> "Traced":
        """Trace a function of pytrees of arrays."""
        leaves, structure = jax.tree.flatten(arguments)
        self._base = current_path()

        def of_leaves(*leaves: Any) -> Any:
            return function(*jax.tree.unflatten(structure, leaves))

        with paths_from(self._base), observing_scans(self), jax.disable_jit(False):
            if self.levels:
                with reading(self):
                    closed, shape = jax.make_jaxpr(of_leaves, return_shape=True)(*leaves)
            else:
                closed, shape = jax.make_jaxpr(of_leaves, return_shape=True)(*leaves)
        return Traced(self, closed, jax.tree.structure(shape))

    def site_of(self, place: Place) -> Site:
        """The site of a mark."""
        number, before = place
        return self._marks[number].site.repeated(before)

    def ranks(self) -> dict[Site, int]:
        """The ranks of the values of sites as they were marked: `vmap` around them adds axes at the front."""
        return {mark.site: mark.rank for mark in self._marks if not mark.is_perturbation}

    def _parts(self) -> tuple[str, ...]:
        return current_path()[len(self._base) :]

    def _mark(self, value: Any, what: _Mark) -> Any:
        self._marks.append(what)
        return mark(value, self._owner, len(self._marks) - 1)


class _Names:
    """Reads the names of a loop's step, and changes nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self.depth = recorder.depth
        self.found: list[tuple[tuple[str, ...], str]] = []
        self._recorder = recorder

    def read(self, leaf: Any, label: str) -> Any:
        """Take note of a name."""
        self.found.append((self._recorder._parts(), label))
        return leaf

    def forget(self) -> None:
        """JAX's caches keep the reader; its names are read before."""


@dataclass(frozen=True)
class Traced:
    """The trace of a function.

    Attributes:
        recorder: what was recorded.
        closed: the jaxpr.
        structure: the structure of the results.
    """

    recorder: Recorder
    closed: Any
    structure: Any

    def run(
        self, arguments: Any, added: Mapping[Site, Any] | None = None, *, consts: Sequence[Any] | None = None
    ) -> tuple[Any, dict[Site, Any], dict[Site, Any]]:
        """Evaluate the function.

        Args:
            arguments: its arguments.
            added: by site, what is added to its values.
            consts: the arrays that it reads and that are not its arguments; None: those of the trace.

        Returns:
            The results; the values by site; and the zeros by site that may take the place of `added`.
        """
        recorder, added = self.recorder, added or {}
        marks = recorder._marks
        counts = marks_in(self.closed.jaxpr, recorder._owner)
        places = {
            place: recorder.site_of(place)
            for number, many in counts.items()
            for place in ((number, i) for i in range(many))
        }
        takes = {
            place: site for place, site in places.items() if marks[place[0]].is_name or marks[place[0]].is_perturbation
        }
        by_place = {place: added[site] for place, site in takes.items() if site in added}

        def named(number: int, value: Any) -> Any:
            return name(value, marks[number].site.label) if marks[number].is_name else value

        replay = Replay(recorder._owner, named, by_place)
        results = replay.run(self.closed, jax.tree.leaves(arguments), consts)
        for number, reason in replay.unreachable.items():
            recorder.untraced.setdefault(recorder.site_of((number, 0)), reason)
        found = {(mark.site.parts, mark.site.label) for number, mark in enumerate(marks) if counts[number]}
        for number, what in enumerate(marks):
            # A step that is traced within the step, for its shapes, has the same names.
            if what.is_name and not counts[number] and (what.site.parts, what.site.label) not in found:
                recorder.untraced.setdefault(recorder.site_of((number, 0)), _LOST)
        recorder.hidden |= {recorder.site_of(place) for place in replay.values if place[0] in replay.hidden}
        values, zeros = dict[Site, Any](), dict[Site, Any]()
        for place, value in replay.values.items():
            (zeros if marks[place[0]].is_perturbation else values)[places[place]] = value
        return jax.tree.unflatten(self.structure, results), values, zeros


_LOST = "no operation of the traced step holds it"


def _is_number(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == jnp.bool_)
