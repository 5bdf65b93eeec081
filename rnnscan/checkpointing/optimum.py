"""The fewest evaluations of any checkpointing schedule."""

from functools import lru_cache
from math import comb
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rnnscan._util.messages import is_count


Integers: TypeAlias = npt.NDArray[np.int64]

# Above any cost, while a sum of a few does not overflow.
_IMPOSSIBLE = np.iinfo(np.int64).max // 4


def hidden_states(steps: int, slots: int) -> int:
    """The fewest evaluations to backpropagate through `steps` steps with `slots` saved carries.

        C(t, m) = min over 1 <= y < t of  y + C(t - y, m - 1) + C(y, m)
        C(t, 1) = t (t + 1) / 2
        C(t, m) = 2 t - 1                                         for m >= t

    The first y steps run, and the carry after them takes a slot. The later t - y steps are backpropagated, which frees
    the slot; then the first y are. The carry before the first step takes one of the m slots.

    Args:
        steps: t, the length of the sequence.
        slots: m, the number of carries saved at a time.

    Returns:
        C(t, m), in O(t^2 m) operations and O(t m) memory. `binomial` computes the same number in closed form.

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
    """The fewest evaluations if a slot holds all residuals of one step.

        C(t, m) = min over 1 <= y <= t of  y + C(t - y, m - 1) + C(y - 1, m)
        C(t, 1) = t (t + 1) / 2
        C(t, m) = t                                               for m >= t

    The first y steps run, and the residuals of step y take a slot, its new carry included. The later t - y steps are
    backpropagated, then step y without running again, then the y - 1 steps before it.

    Args:
        steps: t, the length of the sequence.
        slots: m, the number of steps whose residuals are saved at a time, including the step that is being
            backpropagated. The carry before the first step takes no slot.

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
    """The fewest evaluations if each checkpoint is either a carry or all residuals of one step.

        C(t, m) = min of  y + C(t - y, m - 1) + C(y, m)           over 1 <= y < t    (a carry is saved)
                          y + C(t - y, m - a) + C(y - 1, m)       over 1 <= y <= t   (a step is saved)
        C(t, 1) = t (t + 1) / 2
        C(t, m) = t                                               for m >= a t

    With a = 1 this is `internal_states`, and with a > m `hidden_states`. As in the latter, the memory of the step that
    is being backpropagated from a saved carry is not counted.

    Args:
        steps: t, the length of the sequence.
        slots: m, the memory, in carries.
        internal_size: a, the memory of one step's residuals, in carries; its new carry is one of them.

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
    """The fewest evaluations to backpropagate with `slots` saved carries, in closed form.

        beta(s, r) = (s + r)! / (s! r!)                 the most steps if none runs untaped more than r times
        C(t, s) = t + r t - beta(s + 1, r - 1)          with the least r for which t <= beta(s, r)

    It equals `hidden_states`: t evaluations are taped, and the carry before the first step takes one of the s slots.

    Args:
        steps: t, the length of the sequence.
        slots: s, the number of carries saved at a time.

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
    # More slots than the schedule can fill change nothing.
    needed = max(1, steps if internal_size is None else steps * internal_size)
    slots = min(slots, needed)
    return int(_table(steps, slots, internal_size)[slots, steps])


@lru_cache(maxsize=4)
def _table(steps: int, slots: int, internal_size: int | None) -> Integers:
    """C(t, m) of `mixed_states` at [m, t], or of `hidden_states` if `internal_size` is None.

    `internal_states` is the case `internal_size=1`: saving a step is then never worse than saving its carry.
    """
    lengths = np.arange(steps + 1, dtype=np.int64)
    cost = np.full((slots + 1, steps + 1), _IMPOSSIBLE)
    cost[:, 0] = 0
    cost[1:, 1:2] = 1
    cost[1] = lengths * (lengths + 1) // 2
    for m in range(2, slots + 1):
        carry_saved = cost[m - 1]
        step_saved = None if internal_size is None or internal_size > m else cost[m - internal_size]
        left = lengths + cost[m]  # y + C(y, m), filled in as t grows
        for t in range(2, steps + 1):
            least = (left[1:t] + carry_saved[t - 1 : 0 : -1]).min()
            if step_saved is not None:
                least = min(least, 1 + (left[:t] + step_saved[t - 1 :: -1]).min())
            cost[m, t], left[t] = least, t + least
    return cost


def check(function: str, **values: Any) -> None:
    """Check that `steps` is an integer of at least 0, and the others of at least 1."""
    meaning = {"steps": "steps", "slots": "carries", "sub_scans": "scans", "internal_size": "carries"}
    for name, value in values.items():
        least = 0 if name == "steps" else 1
        if not is_count(value, least=least):
            raise ValueError(
                f"{function}: `{name}` must be a number of {meaning[name]} of at least {least}; got {value!r}."
            )
