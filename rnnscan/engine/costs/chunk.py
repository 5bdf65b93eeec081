"""The steps of a chunk: what a step takes in bytes, and lengths that leave no remainder."""

from typing import NamedTuple

from rnnscan.engine.costs.machine import Machine


# Fewer bytes of a step stay in a core's first cache, where copies for a chunk take little time.
_COPIED_BYTES = 32 << 10


class StepBytes(NamedTuple):
    """The memory of a step, in bytes, and the work of its products.

    Attributes:
        made: the values that a chunk makes for this step.
        given: its carry and its input.
        kept: the values kept at every step, with the input.
        starts: the values kept at the start of a chunk only.
        operations: those of its products with an operand that is the same at every step; None: it has no product, and
            no branch or loop that may hide one.
    """

    made: int
    given: int
    kept: int
    starts: int
    operations: int | None = 0


def copies_more_than_it_saves(step: StepBytes, machine: Machine) -> bool:
    """Whether a chunk of several steps would copy more than it saves.

    It cuts out twice what is kept of each step. A neural Turing machine has 7 operations for each byte that is copied,
    and takes 0.9 of the time with chunks of one step. An online softmax has 16, and takes 0.7. A ConvLSTM has 33 and
    more, and takes 1.1.
    """
    if 8 * step.starts > step.kept:
        return False  # Longer chunks keep much less.
    if step.operations is None:
        return step.made <= step.given  # Nothing is batched, and no product sums over steps.
    copies = step.given >= max(_COPIED_BYTES, step.kept // 2)
    time_of_copies = 2 * machine.ns_per_written_byte * step.kept
    return copies and machine.ns_per_batched_operation * step.operations <= time_of_copies


def near_divisor(length: int, most: int) -> int:
    """The steps of a chunk, at most so many and at least half as many, that leaves no remainder; else so many.

    A remainder means a second copy of the loops to compile, and of what goes in and out.
    """
    return max((steps for steps in range(most, (most - 1) // 2, -1) if length % steps == 0), default=most)
