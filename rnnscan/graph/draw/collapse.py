"""collapsed(): a diagram with one box for each named scope, and for arguments and results that belong together."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, takewhile

from rnnscan.graph.draw.colors import KINDS, most_kept
from rnnscan.graph.draw.diagram import Arrow, Box, Diagram
from rnnscan.graph.draw.text import shortened


# A diagram with more operations is collapsed.
LARGE = 200
# Without scopes, the operations of a large diagram are drawn as this many runs.
RUNS = 40


def collapsed(diagram: Diagram, collapse: bool | int | None) -> Diagram:
    """The diagram, with the operations of a named scope in one box.

    Every box holds operations that run one after the other, so no arrow leads back. If scopes alone leave more than
    `LARGE` boxes, neighbors are joined into `RUNS` runs.

    Args:
        diagram: the diagram.
        collapse: the number of enclosing scopes to tell apart; True is 1, and False none. None: as many as leave at
            most `LARGE` boxes, and no box is collapsed in a diagram with fewer operations.
    """
    operations = [box for box in diagram.boxes if box.role == "operation"]
    if collapse is False or (collapse is None and len(operations) <= LARGE):
        return diagram
    deepest = max((len(box.scope) for box in operations), default=0)
    depths = range(max(deepest, 1), 0, -1) if collapse is None else [int(collapse)]
    groups: list[list[Box]] = []
    for depth in depths:
        groups = _by_scope(operations, depth)
        if len(groups) <= LARGE:
            break
    if len(groups) > LARGE:
        groups = _runs(groups)
    return _with_ends_joined(_quotient(diagram, groups, [*_titles(groups, depth)]))


def _by_scope(operations: Sequence[Box], depth: int) -> list[list[Box]]:
    """Neighbors with the same scopes around them. An operation in fewer scopes stays alone."""

    def key(numbered: tuple[int, Box]) -> Hashable:
        number, box = numbered
        return box.scope[:depth] if len(box.scope) >= depth else number

    return [[box for _, box in group] for _, group in groupby(enumerate(operations), key)]


def _runs(groups: Sequence[list[Box]]) -> list[list[Box]]:
    """Joins neighbors into runs of about as many operations."""
    count = sum(map(len, groups))
    runs: list[list[Box]] = []
    seen = 0
    for group in groups:
        if len(runs) <= seen * RUNS // count:
            runs.append([])
        runs[-1] += group
        seen += len(group)
    return runs


def _titles(groups: Iterable[Sequence[Box]], depth: int) -> Iterator[str]:
    """The scope of each group, numbered where it comes again; the operations of a run, numbered from 0 on."""
    times: Counter[str] = Counter()
    first = 0
    for group in groups:
        scopes = {box.scope[:depth] for box in group}
        name = "/".join(next(iter(scopes))) if len(scopes) == 1 else ""
        times[name] += bool(name)
        number = f" ({times[name]})" if times[name] > 1 else ""
        yield f"{name}{number}" if name else f"operations {first} to {first + len(group) - 1}"
        first += len(group)


def _quotient(diagram: Diagram, groups: Sequence[Sequence[Box]], titles: Sequence[str]) -> Diagram:
    pairs = list(zip(groups, titles, strict=True))
    joined = [_group(f"g{number}", group, title) for number, (group, title) in enumerate(pairs) if len(group) > 1]
    return _with_joined(diagram, joined)


def _with_joined(diagram: Diagram, joined: Sequence[Box]) -> Diagram:
    """The diagram with joined boxes, each in the place of its first member."""
    of = {member: box.id for box in joined for member in box.members}
    at = {box.members[0]: box for box in joined}
    boxes = [at.get(box.id, box) for box in diagram.boxes if box.id not in of or box.id in at]
    return Diagram(tuple(boxes), tuple(_joined_arrows(diagram.arrows, lambda box: of.get(box, box))))


def _group(identifier: str, members: Sequence[Box], title: str) -> Box:
    texts = Counter(box.text for box in members)
    kinds = Counter(box.kind for box in members if box.kind)
    known = [kind for kind in KINDS if kind in kinds]
    count = f"{len(members)} operations"
    often = [f"{number} {text}" for text, number in texts.most_common()]
    words = ", ".join(often)
    names = ", ".join(often[:3]) + (", \N{HORIZONTAL ELLIPSIS}" if len(often) > 3 else "")
    share = ", ".join(f"{kinds[kind]} {kind}" for kind in known)
    return Box(
        identifier,
        shortened(title),
        (count, shortened(names), *([share] if share else [])),
        f"{title}: {count}\n{shortened(words, 400)}",
        "group",
        known[-1] if known else "",
        stands_out=True,
        members=tuple(box.id for box in members),
    )


def _joined_arrows(arrows: Iterable[Arrow], box_of: Callable[[str], str]) -> Iterator[Arrow]:
    """One arrow for all values between two boxes, if one of them is new. It has the line of the most kept value."""
    joined: dict[tuple[str, str, str], list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        source, target = box_of(arrow.source), box_of(arrow.target)
        if source != target:
            value = arrow.value if source == arrow.source else source
            joined[source, target, value].append(arrow)
    for (source, target, value), every in joined.items():
        values = {arrow.value: arrow for arrow in every}
        line = most_kept(arrow.keeping for arrow in every)
        tooltip = every[0].tooltip if len(values) == 1 else _few(f"{len(values)} values", [*values.values()])
        yield replace(every[0], source=source, target=target, value=value, tooltip=tooltip, keeping=line)


def _few(title: str, arrows: Sequence[Arrow], most: int = 8) -> str:
    more = [f"and {len(arrows) - most} more"] if len(arrows) > most else []
    return "\n".join([title, *(arrow.tooltip for arrow in arrows[:most]), *more])


def _with_ends_joined(diagram: Diagram) -> Diagram:
    """Joins arguments that the same boxes read, and results of the same box."""
    neighbors: dict[str, set[str]] = defaultdict(set)
    for arrow in diagram.arrows:
        neighbors[arrow.source].add(arrow.target)
        neighbors[arrow.target].add(arrow.source)
    alike: dict[Hashable, list[Box]] = defaultdict(list)
    for box in diagram.boxes:
        if box.is_end:
            alike[box.role, box.kind, frozenset(neighbors[box.id])].append(box)
    return _with_joined(diagram, [_ends(group) for group in alike.values() if len(group) > 1])


def _ends(members: Sequence[Box]) -> Box:
    first = members[0]
    shared = _shared_root([box.name or box.text for box in members])
    count = f"{len(members)} {first.role}s"
    return replace(
        first,
        id=f"{first.id}s",
        text=shortened(shared or count),
        notes=(count,) if shared else (),
        tooltip="\n".join([count, *(box.tooltip for box in members[:20]), *(["..."] if len(members) > 20 else [])]),
        members=tuple(box.id for box in members),
    )


def _shared_root(places: Sequence[str]) -> str:
    """The part of places that all of them begin with, up to a key.

    Example:
        >>> _shared_root(["params['rnn']['kernel']", "params['rnn']['bias']"]), _shared_root(["x", "y"])
        ("params['rnn']", '')
    """
    same = takewhile(lambda characters: len(set(characters)) == 1, zip(*places, strict=False))
    return "".join(characters[0] for characters in same).rpartition("[")[0]
