"""The loop over the steps of a sequence, in pieces: chunks of the engine, segments of memory, or single steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan._util.varying import shard_as
from rnnscan._util.zeros import zeros_of_type
from rnnscan.engine.loops.indexing import put_items


# (carry, xs of each step, steps of the piece) -> (carry, ys of each step, values of the piece)
Body: TypeAlias = Callable[[Any, Any, int], tuple[Any, Any, Any]]
# (carry, first step, number of the whole piece or None, steps) -> (carry, ys of each step, values of the piece)
BodyInPlace: TypeAlias = Callable[[Any, Any, Any, int], tuple[Any, list[Any], list[Any]]]


@dataclass(frozen=True)
class TimeLoop:
    """A loop over the pieces of a sequence. A remainder makes one shorter piece.

    Attributes:
        length: the steps of the sequence.
        piece: the steps of a piece.
        reverse: from the last piece to the first.
        shorter_first: whether the shorter piece is the first to run, else the last.
    """

    length: int
    piece: int
    reverse: bool
    shorter_first: bool = True

    @property
    def back(self) -> "TimeLoop":
        """The loop over the same pieces from the last to run to the first."""
        return TimeLoop(self.length, self.piece, not self.reverse, not self.shorter_first)

    @property
    def count(self) -> int:
        """The number of whole pieces."""
        return self.length // self.piece

    @property
    def rest(self) -> int:
        """The steps of the shorter piece."""
        return self.length % self.piece

    @property
    def _begins_with_shorter(self) -> bool:
        return self.shorter_first != self.reverse

    @property
    def first_of_shorter(self) -> int:
        """The first step of the shorter piece."""
        return 0 if self._begins_with_shorter else self.count * self.piece

    def run(self, body: Body, carry: Any, xs: Any) -> tuple[Any, Any, Any]:
        """Run piece by piece, as `lax.scan` over the whole pieces and a call for the shorter one.

        Args:
            body: runs a piece.
            carry: the carry before the first piece to run.
            xs: a pytree of leaves `(length, ...)`.

        Returns:
            The carry, ys with leaves `(length, ...)`, and leaves `(number of whole pieces, ...)`.
        """
        rest = self.rest
        if not rest:
            return self._run_whole(body, carry, xs)
        begins, first = self._begins_with_shorter, self.first_of_shorter
        shorter, whole = slice(first, first + rest), slice(rest, None) if begins else slice(0, first)
        of_shorter, of_whole = (jax.tree.map(lambda leaf, part=part: leaf[part], xs) for part in (shorter, whole))
        if not self.count:
            carry, ys, new = body(carry, of_shorter, rest)
            return carry, ys, jax.tree.map(lambda leaf: lax.full_like(leaf, 0, shape=(0, *leaf.shape)), new)
        if self.shorter_first:
            carry, ys_of_shorter, _ = body(carry, of_shorter, rest)
        carry, ys, new = self._run_whole(body, carry, of_whole)
        if not self.shorter_first:
            carry, ys_of_shorter, _ = body(carry, of_shorter, rest)
        pair = (ys_of_shorter, ys) if begins else (ys, ys_of_shorter)
        return carry, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pair), new

    def _run_whole(self, body: Body, carry: Any, xs: Any) -> tuple[Any, Any, Any]:
        count, piece = self.count, self.piece
        if count == 1:  # JAX would trace a loop of one iteration, and its derivatives.
            carry, ys, new = body(carry, xs, piece)
            return carry, ys, jax.tree.map(lambda leaf: lax.expand_dims(leaf, [0]), new)

        def run_piece(carry: Any, xs: Any) -> tuple[Any, tuple[Any, Any]]:
            carry, ys, new = body(carry, xs, piece)
            return carry, (ys, new)

        cut = jax.tree.map(lambda leaf: lax.reshape(leaf, (count, piece, *leaf.shape[1:])), xs)
        carry, (ys, new) = lax.scan(run_piece, carry, cut, length=count, reverse=self.reverse)
        return carry, jax.tree.map(lambda leaf: lax.reshape(leaf, (count * piece, *leaf.shape[2:])), ys), new

    def run_in_place(
        self, body: BodyInPlace, carry: Any, ys: Sequence[Any], of_piece: Sequence[Any] = ()
    ) -> tuple[Any, list[Any], list[Any]]:
        """Run piece by piece, with ys in the state of a loop, and xs read by the body where it needs them.

        `lax.scan` cuts what it is given in items, and stacks what it makes. Loops within loops then copy each item
        twice. Under `jax.vmap` it also moves the steps to the front of all stacks, and others move them back. Of a loop
        in place JAX has no reverse mode.

        Args:
            body: runs a piece. The numbers of whole pieces are in the order of the sequence. What it returns for the
                only piece is the result, as it is.
            carry: the carry before the first piece to run.
            ys: the types of the ys of a step.
            of_piece: the types of the values of a piece, `(1, ...)`.

        Returns:
            The carry, ys `(length, ...)`, and the values of whole pieces `(number of these, ...)`.
        """
        # XLA for a TPU fills no stack with zeros of which it knows that each item is written (jax 0.10.2).
        in_pieces = self.piece > 1 and not self.rest

        def put(stack: Any, items: Any, first: Any, number: Any) -> Any:
            items = lax.expand_dims(items, [0]) if in_pieces else items
            # Some operations of a transposed step lose the explicit axes of a mesh (jax 0.12).
            return put_items(stack, number if in_pieces else first, shard_as(items, jax.typeof(stack)))

        def run_piece(state: Any, first: Any, number: Any, steps: int) -> tuple[Any, list[Any], list[Any]]:
            carry, stacks, of_pieces = state
            carry, ys, new = body(carry, first, number, steps)
            stacks = [put(stack, items, first, number) for stack, items in zip(stacks, ys, strict=True)]
            if number is not None:
                of_pieces = [put_items(stack, number, leaf) for stack, leaf in zip(of_pieces, new, strict=True)]
            return carry, stacks, of_pieces

        def run_next(counted: Any) -> Any:
            done, *state = counted
            number = lax.sub(np.int32(self.count - 1), done) if self.reverse else done
            return lax.add(done, np.int32(1)), *run_piece(state, self._first_of(number), number, self.piece)

        if self.piece == self.length:
            return body(carry, np.int32(0), np.int32(0), self.length)
        stacks = [zeros_of_type(aval, self.length) for aval in ys]
        if in_pieces:
            stacks = [lax.reshape(stack, (self.count, self.piece, *stack.shape[1:])) for stack in stacks]
        state = carry, stacks, [zeros_of_type(aval, self.count) for aval in of_piece]
        if self.rest and self.shorter_first:
            state = run_piece(state, np.int32(self.first_of_shorter), None, self.rest)
        _, *state = _repeat(run_next, (np.int32(0), *state), self.count)
        if self.rest and not self.shorter_first:
            state = run_piece(state, np.int32(self.first_of_shorter), None, self.rest)
        carry, stacks, of_pieces = state
        if in_pieces:
            stacks = [lax.reshape(stack, (self.length, *stack.shape[2:])) for stack in stacks]
        return carry, stacks, of_pieces

    def _first_of(self, number: Any) -> Any:
        """The first step of a whole piece."""
        first = number if self.piece == 1 else lax.mul(number, np.int32(self.piece))
        return lax.add(first, np.int32(self.rest)) if self.rest and self._begins_with_shorter else first


def _repeat(run: Callable[[Any], Any], state: Any, times: int) -> Any:
    """Run a function of a state so many times. The first value of the state counts them.

    By `lax.while_loop`, because JAX traces the loop of `lax.scan` a second time to lower it.
    """
    if times <= 1:
        return run(state) if times else state
    return lax.while_loop(lambda state: lax.lt(state[0], np.int32(times)), run, state)
