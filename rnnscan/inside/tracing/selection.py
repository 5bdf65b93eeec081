"""The choice of names, steps and rows, checked against the sites of a function."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from operator import index
from typing import Any

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.machine_memory import machine_bytes
from rnnscan._util.messages import listing, nearest
from rnnscan.inside.tracing.recorder import ScanFacts
from rnnscan.inside.tracing.sites import Site, matching, with_ends


def chosen_paths(names: Sequence[str] | None, paths: Mapping[str, Site], untraced: Mapping[str, str]) -> list[str]:
    """The paths that names choose, in the order of the function; all if there are no names.

    Raises:
        TypeError: if `names` is not a sequence of strings.
        ValueError: if no value has one of the names, or it cannot be traced.
    """
    if names is None:
        return [*paths]
    names = [names] if isinstance(names, str) else [*names]
    chosen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"trace: `names` must be names of values, as strings; got {name!r} among them.")
        found = matching(name, paths)
        if not found:
            for path in matching(name, untraced):
                raise ValueError(f"trace: a value must run at every step; {path!r} cannot be traced: {untraced[path]}.")
            raise ValueError(
                f"trace: `names` must be names or paths of values in the scans; got {name!r}, and there are "
                f"{listing(paths)}.{nearest(name, with_ends(paths))}"
            )
        chosen.update(found)
    return [path for path in paths if path in chosen]


def chosen_steps(steps: Any, scans: Sequence[ScanFacts]) -> tuple[int, ...] | None:
    """The steps in order, each once; None for all.

    Raises:
        TypeError: if they are not integers.
        ValueError: if one is out of range in one of the scans.
    """
    if steps is None:
        return None
    chosen = _integers("steps", steps)
    shortest = min(scan.length for scan in scans)
    for step in chosen:
        if not 0 <= step < shortest:
            raise ValueError(
                f"trace: `steps` must be from 0 to {shortest - 1}, because the scan has {shortest} steps; got {step}."
            )
    return chosen


def chosen_rows(rows: Any, scans: Sequence[ScanFacts]) -> tuple[int, ...] | None:
    """The rows in order, each once; None for all.

    Raises:
        TypeError: if they are not integers.
        ValueError: if one is out of range, or the scans have no batch axis.
    """
    if rows is None:
        return None
    chosen = _integers("rows", rows)
    for scan in scans:
        if scan.rows is None:
            raise ValueError(
                f"trace: `rows` must be rows of a batch; got rows={list(chosen)} for a scan without a batch axis that "
                "all leaves of carry, (N, ...), and inputs, (T, N, ...), share. Leave `rows` out."
            )
        for row in chosen:
            if not 0 <= row < scan.rows:
                raise ValueError(
                    f"trace: `rows` must be from 0 to {scan.rows - 1}, because the batch has {scan.rows} rows; got "
                    f"{row}."
                )
    return chosen


def _integers(argument: str, values: Any) -> tuple[int, ...]:
    with suppress(TypeError):  # One integer, also of numpy.
        values = [index(values)]
    try:
        return tuple(sorted({index(value) for value in values}))
    except TypeError as error:
        raise TypeError(
            f"trace: `{argument}` must be an integer or integers, such as range(0, 100, 10); got {values!r}."
        ) from error


def check_memory(types: Mapping[str, Any], steps: int, copies: int) -> None:
    """Reject values that need more memory than the machine has.

    Args:
        types: the types of the traced values.
        steps: how many steps they have.
        copies: how many arrays there are for each value.

    Raises:
        ValueError: if they do.
    """
    available = machine_bytes()
    sizes = {path: prod(aval.shape) * aval.dtype.itemsize for path, aval in types.items()}
    needed = copies * sum(sizes.values())
    if available is None or needed <= available or not steps:
        return
    largest = max(sizes, key=lambda path: sizes[path])
    raise ValueError(
        f"trace: the values must fit the memory of this machine, {readable_bytes(available)}; got {len(sizes)} values "
        f"over {steps} steps that need {readable_bytes(needed)}, the most for {largest!r}. Choose fewer `names` or "
        f"`rows`, or at most {available * steps // needed} `steps`."
    )
