"""Truncated backpropagation through time, in two forms, and the chunks of a sequence.

Both forms return the values of `scan`. They differ in how far the gradient of the output at step t reaches back:

    by_chunk     to the beginning of its chunk: 1 to k steps
    by_window    k2 - k1 + 1 to k2 steps: every k1 steps the gradient goes back k2 steps

The first is common and makes one pass over the sequence. The second is Williams and Peng's, and runs each step about
`1 + k2 / k1` times. Neither drops a loss.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer

from rnnscan import _checks as checks
from rnnscan._util.messages import is_count
from rnnscan.memory import Memory
from rnnscan.nets.axes import as_sequence
from rnnscan.nets.base import Net
from rnnscan.nets.calls import run, takes_nets
from rnnscan.nets.pieces import check_runs_in_pieces
from rnnscan.newton import Newton
from rnnscan.protocols import Cell
from rnnscan.scan_observer import Window, scanning_window, steps_are_observed


def chunks(xs: Any, size: int) -> Iterator[tuple[int, Any]]:
    """Split sequences into chunks, one for each training step.

    Pass the carry from chunk to chunk. It is an argument of the training step and gets no gradient from later ones, so
    this is `by_chunk` with an update after each chunk. Nets must have `runs_in_pieces`; a bidirectional net needs the
    whole sequence.

    Args:
        xs: a pytree of leaves `(T, ...)`: inputs, targets, masks.
        size: k, the steps of a chunk; the last chunk may be shorter.

    Yields:
        The number of the chunk's first step, which nets take as `first_step`, and the chunk.

    Raises:
        ValueError: if `size` is not a positive integer, or the leaves do not agree on T.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> [(first, piece.tolist()) for first, piece in rs.truncated.chunks(jnp.arange(5), size=2)]
        [(0, [0, 1]), (2, [2, 3]), (4, [4])]
    """
    _check_count("chunks", "size", size)
    length = _length("chunks", checks.as_arrays(xs, "xs"))
    return ((first, _steps(xs, first, first + size)) for first in range(0, length, size))


@takes_nets
def by_chunk(cell: Cell, params: Any, carry: Any, xs: Any, *, size: int, **options: Any) -> tuple[Any, Any]:
    """Run a cell over time, with a gradient that goes back to the beginning of each chunk: `scan(truncate=size)`.

    Call it with a net as `by_chunk(net, params, xs, carry=None, size=size)`.

    Args:
        cell: as in `scan`, or a net that runs in pieces.
        params: as in `scan`.
        carry: as in `scan`; None, for a net: zeros.
        xs: as in `scan`.
        size: the steps of a chunk.
        options: the options of `scan`, or of the net's call.

    Returns:
        The last carry and the outputs.

    Raises:
        ValueError: if a net needs the whole sequence, such as a bidirectional one.
        TypeError, ValueError: as `scan` does.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.GRU(4), jnp.ones((10, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> carry, ys = rs.truncated.by_chunk(cell, params, cell.initial_carry(xs[0]), xs, size=4)
        >>> ys.shape
        (10, 2, 4)

    Source: BPTT(n; n) of Williams and Peng 1990, "An Efficient Gradient-Based Algorithm for On-Line Training of
    Recurrent Network Trajectories".
    """
    check_runs_in_pieces("by_chunk", cell)
    _check_count("by_chunk", "size", size)
    if "truncate" in options:
        raise TypeError(
            f"by_chunk: `size` takes the place of `truncate`; got truncate={options['truncate']!r} too. Leave it out."
        )
    return run(cell, params, carry, xs, truncate=size, **options)


class _Steps(NamedTuple):
    """The scanned inputs. The numbers of the steps are for random choices: None without a key."""

    xs: Any
    valid: Any
    reset: Any
    numbers: Any


@takes_nets
def by_window(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    every: int,
    back: int,
    seq_lengths: Integer[Array, "*batch"] | None = None,
    mask: Bool[Array, " time *batch"] | None = None,
    reset: Bool[Array, " time *batch"] | None = None,
    reset_to: Any = None,
    memory: Memory | None = Memory(),
    engine: Literal["auto", "fission", "lax"] = "auto",
    parallel: Newton | None = None,
    key: Array | None = None,
    first_step: Any = 0,
) -> tuple[Any, Any]:
    """Run a cell over time, with a gradient that every k1 steps goes back k2 steps.

    The outputs of the steps `[j k1, (j + 1) k1)` take the carry before step `(j + 1) k1 - k2` as a constant. Windows
    that reach back to the first step take the initial carry, with its gradient. All windows but the first and the last
    run side by side. Call it with a net as `by_window(net, params, xs, carry=None, every=k1, back=k2)`.

    Args:
        cell: as in `scan`, or a net that runs in pieces.
        params: as in `scan`.
        carry: as in `scan`; None, for a net: zeros. Only windows that reach back to the first step give it gradients.
        xs: as in `scan`.
        every: k1, the steps between two backward passes.
        back: k2, the steps that each backward pass covers; at least k1, so that every loss has a gradient.
        seq_lengths: as in `scan`. Outputs at padded steps are zero.
        mask: as in `scan`.
        reset: as in `scan`.
        reset_to: as in `scan`. It gets the gradients of the windows, not those of the constant carries.
        memory: as in `scan`.
        engine: as in `scan`.
        parallel: as in `scan`.
        key: as in `scan`. A step makes the same random choices in every window that covers it.
        first_step: as in `scan`.

    Returns:
        The last carry, with the gradient of the last window, and the outputs.

    Raises:
        ValueError: if `every` or `back` is not a positive integer, `back` is below `every`, or a net needs the whole
            sequence, such as a bidirectional one.
        TypeError, ValueError: as `scan` does.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.GRU(4), jnp.ones((10, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> carry, ys = rs.truncated.by_window(cell, params, cell.initial_carry(xs[0]), xs, every=2, back=5)
        >>> ys.shape
        (10, 2, 4)

    Source: BPTT(h; h') of Williams and Peng 1990, with h = k2 and h' = k1.
    """
    check_runs_in_pieces("by_window", cell)
    _check_count("by_window", "every", every)
    _check_count("by_window", "back", back)
    if back < every:
        raise ValueError(
            f"by_window: `back` must be at least `every`, so that every loss has a gradient; got back={back} and "
            f"every={every}. Raise `back`, or lower `every`."
        )
    how = {"engine": engine, "parallel": parallel, "key": key}
    xs = checks.as_arrays(xs, "xs")
    if isinstance(cell, Net) and carry is None:
        xs = as_sequence("by_window", cell, xs, None, (seq_lengths, 0), (mask, 1), (reset, 1))
        net: Any = cell
        carry = net.initial_carry(xs)
    carry = checks.as_arrays(carry, "carry")
    length = _length("by_window", xs)
    numbers = None if key is None else first_step + jnp.arange(length)
    steps = _Steps(xs, checks.validity(seq_lengths, mask, length), checks.resets(reset, length), numbers)

    def over_steps(carry: Any, first: int, last: int) -> tuple[Any, Any]:
        with scanning_window(Window(first, 0, length)):
            return over(carry, _steps(steps, first, last))

    def over(carry: Any, window: Any) -> tuple[Any, Any]:
        return _scan(cell, params, carry, window, reset_to, memory=memory, **how)

    def over_each(carries_and_windows: Any) -> tuple[Any, Any]:
        if steps_are_observed():  # Side by side, the windows' steps are one.
            return jax.lax.map(lambda each: over(*each), carries_and_windows)
        return jax.vmap(over)(*carries_and_windows)

    # One run for all windows that reach back to the first step, then `middle` whole windows, then `left` steps.
    first = min(back // every * every, length)
    middle, left = divmod(length - first, every)
    last_carry, ys = over_steps(carry, 0, first)
    outputs = [ys]
    start = first + every - back  # of the first whole window; the next ones start `every` steps apart
    windows = middle + (left > 0)
    if windows:
        before = _carries_before(cell, params, carry, steps, reset_to, start, every, windows, how)
    if middle:
        places = start + every * jnp.arange(middle)[:, None] + jnp.arange(back)[None]
        with scanning_window(Window(start, every, length)):
            carries, ys = over_each((_steps(before, 0, middle), jax.tree.map(lambda leaf: leaf[places], steps)))
        last_carry = jax.tree.map(lambda leaf: leaf[-1], carries)
        outputs.append(jax.tree.map(lambda leaf: _in_order(leaf[:, back - every :]), ys))
    if left:
        start += middle * every
        last_carry, ys = over_steps(jax.tree.map(lambda leaf: leaf[-1], before), start, length)
        outputs.append(_steps(ys, length - left - start, None))
    return last_carry, jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *outputs)


def _carries_before(
    cell: Any, params: Any, carry: Any, inputs: Any, reset_to: Any, start: int, every: int, windows: int, how: Any
) -> Any:
    """The carries before steps `start`, `start + every`, ..., stacked, as constants."""
    params, carry, inputs, reset_to = jax.tree.map(jax.lax.stop_gradient, (params, carry, inputs, reset_to))

    def advance(carry: Any, steps: Any) -> tuple[Any, Any]:
        carry, _ = _scan(cell, params, carry, steps, reset_to, **how)
        return carry, carry

    length = checks.sequence_length(inputs.xs, None)
    with scanning_window(Window(0, 0, length)):
        carry, _ = advance(carry, _steps(inputs, 0, start))
    pieces = jax.tree.map(
        lambda leaf: leaf.reshape(windows - 1, every, *leaf.shape[1:]),
        _steps(inputs, start, start + (windows - 1) * every),
    )
    with scanning_window(Window(start, every, length)):
        _, later = jax.lax.scan(advance, carry, pieces)
    before = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), carry, later)
    return jax.tree.map(jax.lax.stop_gradient, before)  # the cell may close over arrays that get gradients


def _scan(cell: Any, params: Any, carry: Any, steps: _Steps, reset_to: Any, **options: Any) -> tuple[Any, Any]:
    options |= {"mask": steps.valid, "reset": steps.reset, "reset_to": reset_to}
    if steps.numbers is not None and len(steps.numbers):
        options["first_step"] = steps.numbers[0]
    return run(cell, params, carry, steps.xs, **options)


def _steps(tree: Any, first: int, last: int | None) -> Any:
    return jax.tree.map(lambda leaf: leaf[first:last], tree)


def _in_order(leaf: Any) -> Any:
    return jax.lax.collapse(leaf, 0, 2)


def _length(function: str, xs: Any) -> Any:
    """The number of steps."""
    if not jax.tree.leaves(xs):
        raise ValueError(
            f"{function}: the number of steps must be known; got no array in `xs`. Pass one, such as "
            "jnp.arange(steps), which the cell need not read."
        )
    return checks.sequence_length(xs, None)


def _check_count(function: str, argument: str, value: Any) -> None:
    if not is_count(value):
        raise ValueError(f"{function}: `{argument}` must be a number of steps of at least 1; got {value!r}.")
