"""Run a sequence in chunks of steps, one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax


# (state, values of each step, values of the chunk, number of steps) -> (state, new values of each step and chunk)
RunChunk: TypeAlias = Callable[[Any, list[Any], list[Any], int], tuple[Any, list[Any], list[Any]]]


def before_each(after: Any, start: Any, *, reverse: bool) -> Any:
    """The carry before each step, from the carry after each step and the initial one."""
    return jnp.concatenate([after[1:], start[None]] if reverse else [start[None], after[:-1]])


@dataclass(frozen=True)
class Chunks:
    """The chunks of a sequence. A remainder makes one shorter chunk, the first to run.

    Attributes:
        length: number of steps.
        chunk: steps of a chunk.
        from_end: whether the steps begin to run at the end of the sequence.
    """

    length: int
    chunk: int
    from_end: bool

    @property
    def firsts(self) -> tuple[Any, int]:
        """The first steps of the whole chunks, and of the shorter one."""
        count, rest = divmod(self.length, self.chunk)
        # With a constant XLA ran the steps before a chunk of one step again.
        firsts = lax.mul(lax.iota(int, count), lax.full((count,), self.chunk, int))
        if self.from_end or not rest:
            return firsts, count * self.chunk if self.from_end else 0
        return lax.add(firsts, lax.full((count,), rest, int)), 0

    def run(
        self,
        run: RunChunk,
        state: Any,
        steps: Sequence[Any],
        once: Sequence[Any],
        once_first: Sequence[Any],
        *,
        back: bool,
    ) -> tuple[Any, list[Any], list[Any]]:
        """Run chunk by chunk.

        Args:
            run: runs a chunk.
            state: the state between chunks.
            steps: leaves `(length, ...)`.
            once: leaves `(number of whole chunks, ...)`.
            once_first: the same for the shorter chunk, without the axis.
            back: from the last chunk to run to the first.

        Returns:
            The state, leaves `(length, ...)`, and leaves `(number of whole chunks, ...)`.
        """
        count, rest = divmod(self.length, self.chunk)
        whole = slice(0, count * self.chunk) if self.from_end else slice(rest, None)
        shorter = slice(count * self.chunk, None) if self.from_end else slice(0, rest)

        def run_shorter(state: Any) -> tuple[Any, list[Any]]:
            given = [leaf[shorter] for leaf in steps]
            state, new_steps, _ = run(state, given, list(once_first), rest)
            return state, new_steps

        def run_whole(state: Any) -> tuple[Any, list[Any], list[Any]]:
            cut = [leaf[whole].reshape(count, self.chunk, *leaf.shape[1:]) for leaf in steps]

            def body(state: Any, given: Any) -> Any:
                steps, once = given
                state, *made = run(state, steps, once, self.chunk)
                return state, made

            state, (new_steps, new_once) = lax.scan(
                body, state, (cut, list(once)), length=count, reverse=self.from_end != back
            )
            return state, [leaf.reshape(count * self.chunk, *leaf.shape[2:]) for leaf in new_steps], new_once

        if not rest:
            return run_whole(state)
        if back:
            state, after, new_once = run_whole(state)
            state, before = run_shorter(state)
        else:
            state, before = run_shorter(state)
            state, after, new_once = run_whole(state)
        pairs = zip(after, before, strict=True) if self.from_end else zip(before, after, strict=True)
        return state, [jnp.concatenate(pair) for pair in pairs], new_once
