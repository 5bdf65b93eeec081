"""Which nets run in pieces with the carry handed on, and the refusal of those that do not."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax


BOTH_DIRECTIONS = "Its backward direction starts at the end of the sequence, which a piece lacks."
REVERSED = (
    "In reverse it starts at the end of the sequence, and pieces come in the order of time. To run pieces from the "
    "end, flip `xs` along time and run forward."
)

# The leaves of the carry that a training step hands on, while its loss is traced.
_handed_on: ContextVar[tuple[Any, ...]] = ContextVar("_handed_on", default=())


def check_runs_in_pieces(function: str, net: Any) -> None:
    """Refuse a net that needs the whole sequence.

    Args:
        function: the function that runs pieces, for the message.
        net: a net. A cell always runs in pieces.

    Raises:
        ValueError: if the net needs the whole sequence.
    """
    reason = getattr(net, "needs_whole", None)
    if reason is not None:
        raise ValueError(
            f"{function}: the net must run in pieces, its carry handed on; got {net}. {reason} "
            "Run it over whole sequences: net(params, xs, carry)."
        )


@contextmanager
def handing_on(carry: Any) -> Iterator[None]:
    """Within this context, nets that need the whole sequence refuse to start from the leaves of `carry`.

    A training step sees a loss, not its nets, so it is the net that finds the carry of the step before.
    """
    token = _handed_on.set(tuple(jax.tree.leaves(carry)))
    try:
        yield
    finally:
        _handed_on.reset(token)


def check_start(name: str, net: Any, carry: Any, first_step: Any) -> None:
    """Refuse a later piece of a sequence, where a net needs the whole.

    Args:
        name: the net's function, for the message.
        net: the net.
        carry: the carry to start from, or None.
        first_step: the number of the first step, 0 at the beginning of a sequence.

    Raises:
        ValueError: if the net needs the whole sequence, and either argument comes from an earlier piece.
    """
    if net.needs_whole is None:
        return
    if not _is_zero(first_step):
        got = "a traced value" if isinstance(first_step, jax.core.Tracer) else repr(first_step)
        raise ValueError(
            f"{name}: `first_step` must be 0 for a net that needs the whole sequence; got {got}. {net.needs_whole} "
            "For other random choices pass another key."
        )
    check_not_handed_on(name, carry, net.needs_whole)


def check_not_handed_on(name: str, carry: Any, reason: str) -> None:
    """Refuse the carry of the training step before, where the whole sequence is needed.

    Args:
        name: the net or module, for the message.
        carry: the carry to start from, or None.
        reason: why the whole sequence is needed, in a sentence.

    Raises:
        ValueError: if a leaf is one that `handing_on` was given.
    """
    handed_on = _handed_on.get()
    if any(leaf is other for leaf in jax.tree.leaves(carry) for other in handed_on):
        raise ValueError(
            f"{name}: the carry to start from must not be the one that a training step hands on; got that carry. "
            f"{reason} Run whole sequences, with carry=None or an initial carry that the loss makes."
        )


def _is_zero(first_step: Any) -> bool:
    return not isinstance(first_step, jax.core.Tracer) and bool(first_step == 0)
