"""Sites: where the traced values of a function are made, and their paths."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias


Kind: TypeAlias = Literal["name", "carry", "y"]


@dataclass(frozen=True)
class Level:
    """A scan around a site.

    Attributes:
        parts: the parts of the net, or of the cell around an inner scan, in which it is called.
        number: how many scans were called before it in the same function or step.
    """

    parts: tuple[str, ...]
    number: int


@dataclass(frozen=True)
class Site:
    """Where a traced value is made.

    Attributes:
        levels: the scans around it, the outermost first.
        parts: the parts of the cell.
        label: the name, or the place of a leaf of the carry or of y.
        kind: what the value is.
        number: how many sites of this kind come before it in its step.
        repeats: how many equal sites come before it, in its step and in each scan or function around it: functions that
            JAX traces once may be called twice.
    """

    levels: tuple[Level, ...]
    parts: tuple[str, ...]
    label: str
    kind: Kind
    number: int
    repeats: tuple[int, ...] = ()

    def repeated(self, before: int) -> "Site":
        """The site as the function around its step sees it."""
        return replace(self, repeats=(*self.repeats, before))

    def may_become(self, site: "Site") -> bool:
        """Whether functions further out may see this site as that one."""
        return replace(site, repeats=site.repeats[: len(self.repeats)]) == self


def paths_of(sites: Sequence[Site]) -> dict[str, Site]:
    """A path for each site: parts of nets and cells, and the name, `"net_0/layer_1/gates"`.

    Where a function calls several scans, their order follows: `"scan_0/gates"`. So it does for scans within a step,
    `"scan/gates"`. Of several values of one name each has its number, `"gates[0]"`.
    """
    scans: dict[tuple[tuple[Level, ...], tuple[str, ...]], dict[int, None]] = {}
    for site in sites:
        for depth, level in enumerate(site.levels):
            scans.setdefault((site.levels[:depth], level.parts), {})[level.number] = None

    def path_of(site: Site) -> str:
        path: list[str] = []
        for depth, level in enumerate(site.levels):
            numbers = [*scans[site.levels[:depth], level.parts]]
            several = [f"scan_{numbers.index(level.number)}"] if len(numbers) > 1 else ["scan"] if depth else []
            path += [*level.parts, *several]
        return "/".join([*path, *site.parts, site.label])

    grouped: dict[str, list[Site]] = {}
    for site in sites:
        grouped.setdefault(path_of(site), []).append(site)
    return {
        path if len(group) == 1 else f"{path}[{number}]": site
        for path, group in grouped.items()
        for number, site in enumerate(group)
    }


def matching(request: str, paths: Iterable[str]) -> list[str]:
    """The paths that a request means: a path, or its end after a `/`, each with or without numbers of its values."""
    known = list(paths)
    for fits in (_is_path, _is_end):
        found = [path for path in known if fits(request, path) or fits(request, _unnumbered(path))]
        if found:
            return found
    return []


def with_ends(paths: Iterable[str]) -> list[str]:
    """The paths and their last parts, with and without numbers, for a hint at the nearest."""
    known = list(paths)
    return list(dict.fromkeys([*known, *(end for path in known for end in _ends(path.rpartition("/")[2]))]))


def _ends(name: str) -> tuple[str, str]:
    return _unnumbered(name), name


def _is_path(request: str, path: str) -> bool:
    return path == request


def _is_end(request: str, path: str) -> bool:
    return path.endswith(f"/{request}")


def _unnumbered(path: str) -> str:
    """The path without the places of leaves: `"carry"` for `"carry[0]"`."""
    head, slash, last = path.rpartition("/")
    return f"{head}{slash}{last.split('[')[0]}"
