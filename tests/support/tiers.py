"""Which variants of a test `make test` runs: a telling choice. `make test-all` runs them all."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest


def variants(every: Mapping[str, Any] | Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Parameters of a test: those of `quick` for `make test`, the others marked `slow`.

    Args:
        every: all values. The keys of a mapping are their ids, and its tuples several parameters each.
        quick: the keys, or the values, that `make test` runs.
    """
    if isinstance(every, Mapping):
        values = {key: value if isinstance(value, tuple) else (value,) for key, value in every.items()}
        made = [(key, pytest.param(*value, id=key, marks=_marks(key, quick))) for key, value in values.items()]
    else:
        made = [(value, pytest.param(value, marks=_marks(value, quick))) for value in every]
    unknown = [one for one in quick if one not in [key for key, _ in made]]
    assert not unknown, f"no such variants: {unknown}"
    return [parameter for _, parameter in made]


def combinations(first: Mapping[str, Any], second: Mapping[str, Any], third: Mapping[str, Any]) -> list[Any]:
    """Parameters of a test: all combinations of three options. `make test` runs one for each pair of the first two.

    These have each pair of the other options too, if the third option has no more values than the first and the second.
    """
    axes = [list(option) for option in (first, second, third)]
    every, quick = {}, []
    for (i, one), (j, two), (k, three) in product(*map(enumerate, axes)):
        name = f"{one}-{two}-{three}"
        every[name] = (first[one], second[two], third[three])
        if k == (i + j) % len(third):
            quick.append(name)
    return variants(every, quick)


def _marks(one: Any, quick: Iterable[Any]) -> list[Any]:
    return [] if one in quick else [pytest.mark.slow]
