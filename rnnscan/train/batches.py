"""The batch of every step, so that a run that goes on gets the batches that it would have had."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, TypeAlias


Batches: TypeAlias = Callable[[int], Any] | Sequence[Any] | Iterable[Any]


def batches_from(batches: Batches, first: int) -> Iterator[Any]:
    """The batches of a step and of all that follow it.

    Args:
        batches: one of

            - a function `batch_at(step)`, with steps from 0. It is best: where the batch follows from the step alone, a
              run goes on at once, with the batches that it would have had. Shuffle by a generator that is seeded with
              the step or the epoch.
            - what has a length and can be indexed, such as a list or an array: step s gets `batches[s % len(batches)]`.
            - what can only be read in order, such as a data loader. It is begun anew at its end. A run that goes on
              reads over the batches of the steps before, so it gets those that it would have had only if the order
              is the same each time.

        first: the step, from 0.

    Returns:
        An iterator without an end.

    Raises:
        TypeError: if it is none of these.
        ValueError: while reading, if what is read in order has nothing left to begin anew, as a generator has not.

    Example:
        >>> from itertools import islice
        >>> for batches in (lambda step: step % 3, [0, 1, 2], iter(range(9))):
        ...     print(list(islice(batches_from(batches, 2), 4)))
        [2, 0, 1, 2]
        [2, 0, 1, 2]
        [2, 3, 4, 5]
    """
    if callable(batches):
        return map(batches, count(first))
    if isinstance(batches, Mapping) or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise TypeError(
            "fit: `batches` must be a function of the step, a sequence of batches or an iterable of them; got "
            f"{type(batches).__name__}. For one batch in every step write `lambda step: batch`."
        )
    if hasattr(batches, "__len__") and hasattr(batches, "__getitem__"):
        return _indexed(batches, first)
    return islice(_read_in_order(batches), first, None)


def _indexed(batches: Any, first: int) -> Iterator[Any]:
    if not len(batches):
        raise ValueError("fit: `batches` must hold a batch; got none. Give at least one.")
    return (batches[step % len(batches)] for step in count(first))


def _read_in_order(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        batch = nothing = object()
        for batch in batches:
            yield batch
        if batch is nothing:
            raise ValueError(
                "fit: `batches` must hold a batch for every step; got an iterable that has come to its end and does "
                "not begin anew, as a generator does not. Give a function of the step, or a list."
            )
