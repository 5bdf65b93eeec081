"""Run a sequence in chunks of steps, one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax

from rnnscan.engine.loops.indexing import shifted


# (state, values of each step, values of the chunk, number of steps) -> (state, new values of each step and chunk)
RunChunk: TypeAlias = Callable[[Any, list[Any], list[Any], int], tuple[Any, list[Any], list[Any]]]


def before_each(after: Any, start: Any, *, reverse: bool) -> Any:
    """The carry before each step, from the carry after each step and the initial one."""
    return shifted(after, start, to_start=reverse)


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
    def count(self) -> int:
        """The number of whole chunks."""
        return self.length // self.chunk

    @property
    def rest(self) -> int:
        """The steps of the shorter chunk."""
        return self.length % self.chunk

    @property
    def first_of_shorter(self) -> int:
        """The first step of the shorter chunk."""
        return self.count * self.chunk if self.from_end else 0

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
        count, rest = self.count, self.rest
        whole = slice(0, count * self.chunk) if self.from_end else slice(rest, None)
        shorter = slice(count * self.chunk, None) if self.from_end else slice(0, rest)

        def run_shorter(state: Any) -> tuple[Any, list[Any]]:
            given = [leaf[shorter] for leaf in steps]
            state, new_steps, _ = run(state, given, list(once_first), rest)
            return state, new_steps

        def run_whole(state: Any) -> tuple[Any, list[Any], list[Any]]:
            of_whole = [leaf[whole] for leaf in steps] if rest else steps
            cut = [lax.reshape(leaf, (count, self.chunk, *leaf.shape[1:])) for leaf in of_whole]

            def body(state: Any, given: Any) -> Any:
                steps, once = given
                state, *made = run(state, steps, once, self.chunk)
                return state, made

            state, (new_steps, new_once) = lax.scan(
                body, state, (cut, list(once)), length=count, reverse=self.from_end != back
            )
            return state, [lax.reshape(leaf, (count * self.chunk, *leaf.shape[2:])) for leaf in new_steps], new_once

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
