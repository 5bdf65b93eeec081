"""Which variants of a test `make test` runs: a telling choice. `make test-all` runs them all."""

from collections.abc import Iterable, Mapping
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


def _marks(one: Any, quick: Iterable[Any]) -> list[Any]:
    return [] if one in quick else [pytest.mark.slow]
