"""Running a sequence in pieces that pass the carry on: checks that reject nets which need the whole sequence."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax


BOTH_DIRECTIONS = "Its backward direction starts at the end of the sequence, which a piece lacks."
REVERSED = "In reverse it starts at the end of the sequence. To run pieces from the end, flip `xs` and run forward."

# The leaves of the carry of a training step, while its loss is traced.
_training_carry: ContextVar[tuple[Any, ...]] = ContextVar("_training_carry", default=())


def check_runs_in_pieces(function: str, net: Any) -> None:
    """Reject a net that needs the whole sequence. A cell always runs in pieces."""
    reason = getattr(net, "needs_whole", None)
    if reason is not None:
        raise ValueError(
            f"{function}: the net must run in pieces; got {net}. {reason} "
            "Run it over whole sequences: net(params, xs, carry=carry)."
        )


@contextmanager
def training_carry(carry: Any) -> Iterator[None]:
    """Let nets that need the whole sequence reject the leaves of `carry` as their initial carry.

    A training step calls a loss and cannot see its nets, so the nets check the carry.
    """
    token = _training_carry.set(tuple(jax.tree.leaves(carry)))
    try:
        yield
    finally:
        _training_carry.reset(token)


def check_start(name: str, net: Any, carry: Any, first_step: Any) -> None:
    """Reject a carry or a first step from an earlier piece if the net needs the whole sequence."""
    if net.needs_whole is None:
        return
    if not _is_zero(first_step):
        got = "a traced value" if isinstance(first_step, jax.core.Tracer) else repr(first_step)
        raise ValueError(
            f"{name}: `first_step` must be 0 for a net that needs the whole sequence; got {got}. {net.needs_whole} "
            "Pass another key for other random choices."
        )
    check_not_training_carry(name, carry, net.needs_whole)


def check_not_training_carry(name: str, carry: Any, reason: str) -> None:
    """Reject the carry that `training_carry` got; `reason` says why the net or module needs the whole sequence."""
    leaves = _training_carry.get()
    if any(leaf is other for leaf in jax.tree.leaves(carry) for other in leaves):
        raise ValueError(
            f"{name}: the initial carry must not come from the previous training step; got that carry. "
            f"{reason} Run whole sequences, with carry=None or an initial carry that the loss makes."
        )


def _is_zero(first_step: Any) -> bool:
    return not isinstance(first_step, jax.core.Tracer) and bool(first_step == 0)
