"""The batch of every step, the same in a resumed run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, TypeAlias


Batches: TypeAlias = Callable[[int], Any] | Sequence[Any] | Iterable[Any]


def batches_from(batches: Batches, first: int) -> Iterator[Any]:
    """An endless iterator over the batches from step `first` on.

    Args:
        batches: one of

            - A function `batch_at(step)`, with steps from 0. Prefer it: a resumed run gets the same batches
              without reading earlier ones. Shuffle with a generator that is seeded with the step or the epoch.
            - A sequence, such as a list or an array: step s gets `batches[s % len(batches)]`.
            - An iterable, such as a data loader. It restarts at its end. On resume it is fast-forwarded, so its order
              must be the same in every run.

        first: the step, from 0.

    Raises:
        TypeError: if `batches` is none of these.
        ValueError: while reading, if an iterable cannot restart, such as a generator.

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
            f"{type(batches).__name__}. To repeat one batch write `lambda step: batch`."
        )
    if hasattr(batches, "__len__") and hasattr(batches, "__getitem__"):
        return _indexed(batches, first)
    return islice(_read_in_order(batches), first, None)


def _indexed(batches: Any, first: int) -> Iterator[Any]:
    if not len(batches):
        raise ValueError("fit: `batches` must hold a batch; got none. Pass at least one.")
    return (batches[step % len(batches)] for step in count(first))


def _read_in_order(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        batch = nothing = object()
        for batch in batches:
            yield batch
        if batch is nothing:
            raise ValueError(
                "fit: `batches` must hold a batch for every step; got an iterable that has ended and cannot restart, "
                "such as a generator. Pass a function of the step, or a list."
            )
