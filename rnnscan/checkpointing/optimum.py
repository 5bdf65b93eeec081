"""The least evaluations of any checkpointing schedule."""

from functools import lru_cache
from math import comb
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rnnscan._messages import is_count


Integers: TypeAlias = npt.NDArray[np.int64]

# Above any cost, and sums of a few do not overflow.
_IMPOSSIBLE = np.iinfo(np.int64).max // 4


def hidden_states(steps: int, slots: int) -> int:
    """The least evaluations for backpropagation through `steps` steps with `slots` carries kept.

        C(t, m) = min over 1 <= y < t of  y + C(t - y, m - 1) + C(y, m)
        C(t, 1) = t (t + 1) / 2
        C(t, m) = 2 t - 1                                         for m >= t

    y steps run, the carry after them takes a slot, the steps behind it are done with, which frees the slot, and then
    the y steps. The carry before the first step takes one of the m slots.

    Args:
        steps: t, the length of the sequence.
        slots: m, the number of carries that are kept at once.

    Returns:
        C(t, m). It takes O(t^2 m) operations and O(t m) memory; `binomial` has the same number at once.

    Raises:
        ValueError: if `steps` is negative or `slots` is not at least 1.

    Example:
        >>> from rnnscan import checkpointing
        >>> checkpointing.hidden_states(100, 10) / 100
        3.22

    Source: Gruslys et al. 2016, "Memory-Efficient Backpropagation Through Time", hidden state memorization (HSM).
    """
    check("hidden_states", steps=steps, slots=slots)
    return _least(steps, slots, None)


def internal_states(steps: int, slots: int) -> int:
    """The least evaluations where a slot holds all that the backward pass of one step needs.

        C(t, m) = min over 1 <= y <= t of  y + C(t - y, m - 1) + C(y - 1, m)
        C(t, 1) = t (t + 1) / 2
        C(t, m) = t                                               for m >= t

    y steps run, and what the last of them computed takes a slot, its new carry included. The steps behind it are done
    with, then its own backward pass, without running it again, and then the y - 1 steps before it.

    Args:
        steps: t, the length of the sequence.
        slots: m, the number of steps that are kept at once, the one whose backward pass is due among them. The carry
            before the first step takes none.

    Returns:
        C(t, m), in O(t^2 m) operations and O(t m) memory.

    Raises:
        ValueError: if `steps` is negative or `slots` is not at least 1.

    Example:
        >>> from rnnscan import checkpointing
        >>> checkpointing.internal_states(100, 10) / 100
        2.25

    Source: Gruslys et al. 2016, "Memory-Efficient Backpropagation Through Time", internal state memorization (ISM).
    """
    check("internal_states", steps=steps, slots=slots)
    return _least(steps, slots, 1)


def mixed_states(steps: int, slots: int, internal_size: int) -> int:
    """The least evaluations where each kept state is a carry, or all that one step's backward pass needs.

        C(t, m) = min of  y + C(t - y, m - 1) + C(y, m)           over 1 <= y < t    (a carry is kept)
                          y + C(t - y, m - a) + C(y - 1, m)       over 1 <= y <= t   (a step is kept)
        C(t, 1) = t (t + 1) / 2
        C(t, m) = t                                               for m >= a t

    With a = 1 it is `internal_states`; with more slots to a step than there are, `hidden_states`. As in that, the step
    that runs taped from a kept carry, for its own backward pass, is not counted.

    Args:
        steps: t, the length of the sequence.
        slots: m, the memory, in carries.
        internal_size: a, the memory that a step takes, in carries; its new carry is part of it.

    Returns:
        C(t, m), in O(t^2 m) operations and O(t m) memory.

    Raises:
        ValueError: if `steps` is negative, or `slots` or `internal_size` is not at least 1.

    Example:
        >>> from rnnscan import checkpointing
        >>> checkpointing.mixed_states(100, 30, internal_size=3) / 100
        1.91

    Source: Gruslys et al. 2016, "Memory-Efficient Backpropagation Through Time", mixed state memorization (MSM).
    """
    check("mixed_states", steps=steps, slots=slots, internal_size=internal_size)
    return _least(steps, slots, internal_size)


def binomial(steps: int, slots: int) -> int:
    """The least evaluations for backpropagation with `slots` carries kept, in closed form.

        beta(s, r) = (s + r)! / (s! r!)                 the most steps of which none runs untaped more than r times
        C(t, s) = t + r t - beta(s + 1, r - 1)          with the least r for which t <= beta(s, r)

    Of the total, t evaluations are taped and r t - beta(s + 1, r - 1) are not. As in `hidden_states`, to which it is
    equal, the carry before the first step takes one of the s slots.

    Args:
        steps: t, the length of the sequence.
        slots: s, the number of carries that are kept at once.

    Returns:
        C(t, s).

    Raises:
        ValueError: if `steps` is negative or `slots` is not at least 1.

    Example:
        >>> from rnnscan import checkpointing
        >>> checkpointing.binomial(1000, 10), checkpointing.binomial(1_000_000, 10)
        (4636, 12647922)

    Source: Griewank and Walther 2000, "Algorithm 799: revolve".
    """
    check("binomial", steps=steps, slots=slots)
    # beta(s, r) = beta(s, r - 1) (s + r) / r
    repetitions, reach = 0, 1
    while reach < steps:
        repetitions += 1
        reach = reach * (slots + repetitions) // repetitions
    fewer = comb(slots + repetitions, slots + 1)
    return steps + repetitions * steps - fewer


def _least(steps: int, slots: int, internal_size: int | None) -> int:
    # More slots than there is to keep change nothing.
    needed = max(1, steps if internal_size is None else steps * internal_size)
    slots = min(slots, needed)
    return int(_table(steps, slots, internal_size)[slots, steps])


@lru_cache(maxsize=4)
def _table(steps: int, slots: int, internal_size: int | None) -> Integers:
    """C(t, m) of `mixed_states` at [m, t]; where no step can be kept, of `hidden_states`.

    `internal_states` is the case of one slot a step: to keep a step is then never worse than to keep its carry.
    """
    lengths = np.arange(steps + 1, dtype=np.int64)
    cost = np.full((slots + 1, steps + 1), _IMPOSSIBLE)
    cost[:, 0] = 0
    cost[1:, 1:2] = 1
    cost[1] = lengths * (lengths + 1) // 2
    for m in range(2, slots + 1):
        carry_kept = cost[m - 1]
        step_kept = None if internal_size is None or internal_size > m else cost[m - internal_size]
        left = lengths + cost[m]  # y + C(y, m); it is filled as t grows
        for t in range(2, steps + 1):
            least = (left[1:t] + carry_kept[t - 1 : 0 : -1]).min()
            if step_kept is not None:
                least = min(least, 1 + (left[:t] + step_kept[t - 1 :: -1]).min())
            cost[m, t], left[t] = least, t + least
    return cost


def check(function: str, **values: Any) -> None:
    """Refuse what is no number of its kind: `steps` of at least 0, others of at least 1."""
    meaning = {"steps": "steps", "slots": "carries", "sub_scans": "scans", "internal_size": "carries"}
    for name, value in values.items():
        least = 0 if name == "steps" else 1
        if not is_count(value, least=least):
            raise ValueError(
                f"{function}: `{name}` must be a number of {meaning[name]} of at least {least}; got {value!r}."
            )
