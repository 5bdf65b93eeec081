from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from rnnscan.train.batches import batches_from


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def take(count: int, batches: Any, first: int) -> list[Any]:
    return list(islice(batches_from(batches, first), count))


class Loader:
    """What can be read in order, again and again, and has neither a length nor an index."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for batch in (10, 11, 12):
            self.read += 1
            yield batch


def test_a_function_is_asked_for_the_steps_that_are_made_alone() -> None:
    asked = []
    assert take(3, lambda step: asked.append(step) or -step, 5) == [-5, -6, -7]
    assert asked == [5, 6, 7]


@pytest.mark.parametrize("batches", [[10, 11, 12], (10, 11, 12), np.array([10, 11, 12]), range(10, 13)])
def test_what_can_be_indexed_is_begun_anew_after_its_last(batches: Any) -> None:
    assert take(5, batches, 0) == [10, 11, 12, 10, 11]
    assert take(4, batches, 5) == [12, 10, 11, 12]


def test_what_is_read_in_order_is_read_up_to_the_step() -> None:
    assert take(5, Loader(), 0) == [10, 11, 12, 10, 11]
    assert take(4, Loader(), 5) == [12, 10, 11, 12]
    loader = Loader()
    take(2, loader, 2)
    assert loader.read == 4


def test_a_generator_serves_as_long_as_it_lasts() -> None:
    assert take(2, (step for step in range(4)), 2) == [2, 3]
    with pytest.raises(ValueError, match=r"fit: `batches` must hold a batch for every step; got an iterable that has "):
        take(3, (step for step in range(4)), 2)


@pytest.mark.parametrize("batches", [[], iter(())])
def test_no_batch_is_an_error(batches: Any) -> None:
    with pytest.raises(ValueError, match=r"fit: `batches` must hold a batch"):
        take(1, batches, 0)


@pytest.mark.bad_input
@pytest.mark.parametrize("batches", [{"xs": np.zeros(3)}, None, 3])
def test_what_holds_no_batches_is_refused(batches: Any) -> None:
    with pytest.raises(TypeError, match=r"an iterable of them; got \w+\. To repeat one batch write `lambda"):
        batches_from(batches, 0)
