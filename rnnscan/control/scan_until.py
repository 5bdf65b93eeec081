"""scan_until(): a scan in which rows stop independently."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer

from rnnscan import _checks as checks
from rnnscan._util.call_context import called_as
from rnnscan._util.refs import is_ref
from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import one_step, skip_stopped
from rnnscan._util.varying import vary_as
from rnnscan._util.zeros import zeros_of_value
from rnnscan.control import _until
from rnnscan.engine.call.prepare import cell_step, resolve_carry
from rnnscan.memory import Memory
from rnnscan.protocols import Cell, check_cell
from rnnscan.random_choices import warned_if_random
from rnnscan.scan_observer import observe_loop, observed_step


def scan_until(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    stop: Callable[[Any, Any, Any], Any],
    max_steps: int,
    *,
    memory: Memory = Memory(),
) -> tuple[Any, Any, Integer[Array, "*batch"]]:
    """Run a cell over time until each row has stopped, with gradients.

    For one row it computes

        ys, count = [], 0
        while count < max_steps:
            carry, y = cell(params, carry, xs[count])
            ys, count = [*ys, y], count + 1
            if stop(params, carry, y):
                break
        return carry, stack(ys), count

    and `ys` is zero after `count` steps. The step that stops a row is counted. The scan ends when all rows have
    stopped; until then a row that has stopped holds its carry.

    Args:
        cell: a pure function `cell(params, carry, x) -> (carry, y)`, as for `rnnscan.scan`. It makes random choices,
            such as dropout, only with a key: `rnnscan.with_key(cell, key, params, x)`, over pairs `(x, number)`.
        params: the cell's parameters.
        carry: the carry before the first step.
        xs: the inputs, leaves `(max_steps, N, ...)`; or None.
        stop: `stop(params, carry, y)`, of the carry and y after a step: `(N,)` booleans, true for rows that have
            stopped, or one boolean for all. No gradient flows through it. With `(N,)` booleans, leaves of carry and
            y are `(N, ...)`.
        max_steps: the most steps. Reverse mode allocates memory for as many, as in `rnnscan.while_net`.
        memory: the memory choice, as in `rnnscan.while_net`.

    Returns:
        The carry of each row after its last step; the outputs, leaves `(max_steps, ...)`; and the number of steps,
        `(N,)` int32, or a scalar if `stop` returns one boolean.

    Raises:
        TypeError: if `stop` returns no booleans, or the cell another type of carry.
        ValueError: if an option or a shape is wrong, `memory` has a name that the cell does not define, or the cell or
            `stop` has a side effect other than those of `jax.debug`.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def double(params, carry, x):
        ...     return 2 * carry, carry
        >>> def stop(params, carry, y):
        ...     return carry > 20
        >>> carry, ys, count = rs.scan_until(double, None, jnp.array([3.0, 8.0]), None, stop, max_steps=5)
        >>> count, carry
        (Array([3, 2], dtype=int32), Array([24., 32.], dtype=float32))
        >>> ys[:, 1]
        Array([ 8., 16.,  0.,  0.,  0.], dtype=float32)
    """
    check_cell("scan_until", cell, Cell)
    _until.check_options("scan_until", max_steps, memory)
    if not callable(stop):
        raise TypeError(f"scan_until: `stop` must be callable as stop(params, carry, y); got {stop!r}.")
    checks.check_params(params, function="scan_until")
    carry = checks.as_arrays(carry, "carry", function="scan_until")
    arrays = {"params": params, "carry": carry, "xs": checks.as_arrays(xs, "xs", function="scan_until")}
    options = {"max_steps": max_steps, "memory": memory}
    observe_loop("scan_until", cell, params, carry, jax.tree.map(one_step, arrays["xs"]))
    return _until.run_by_cached_program(_run, cell, stop, arrays, options)


def _run(pair: _until.Pair, *, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any, Any]:
    """The carry, ys and the counts."""
    cell, stop = pair.functions()
    cell = observed_step(cell, carry, xs, options["max_steps"])

    def step(params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        with called_as(
            "scan_until: the cell", "cell(params, carry, x)", "A cell returns (carry, y).", carry=carry, x=x
        ):
            carry, y = cell_step(cell, params)(carry, x)
        with called_as(
            "scan_until: `stop`", "stop(params, carry, y)", "It returns booleans (N,), or one.", carry=carry, y=y
        ):
            stopped = _until.as_booleans("scan_until", "stop", stop(params, carry, y), rows=True)
        return carry, (y, jax.lax.stop_gradient(stopped))

    def until(params_and_first: Any, state: Any, x: Any) -> tuple[Any, Any]:
        (params, first), (carry, running, count) = params_and_first, state

        run = partial(step, params)
        held = skip_stopped(run, first) if running.ndim else lambda carry, x_running: run(carry, x_running[0])
        new_carry, (y, stopped) = held(carry, (x, running))
        return (new_carry, running & ~stopped, count + running.astype(count.dtype)), y

    step, until = named_after(step, cell), named_after(until, cell)
    with _until.errors_named("scan_until"):
        checks.sequence_length(xs, options["max_steps"])
        carry, info = resolve_carry(partial(step, params), carry, xs)
        y, stopped = info.y
        if stopped.ndim:
            checks.check_axes_of_rows("`stop`", stopped.shape[0], carry, xs, y)
    of_stopped = info.traced.out_avals[-1]
    running, count = ~zeros_of_value(of_stopped), zeros_of_value(of_stopped.update(dtype=jnp.dtype(jnp.int32)))
    # Under `shard_map` devices stop at different steps where their carries differ.
    state = vary_as((carry, running, count), jax.tree.leaves(carry))
    _, (last, _, count), ys, _ = _until.run(
        "scan_until",
        until,
        (params, (carry, jax.tree.map(_first_step, xs))),
        state,
        xs,
        lambda _, state: state[1].any(),
        **options,
    )
    x = jax.tree.map(one_step, xs)
    last, ys = warned_if_random((last, ys), "scan_until", cell, params, carry, x, lacking="a key", remedy=_BIND_A_KEY)
    return last, ys, count


_BIND_A_KEY = "Bind one, with rnnscan.with_key(cell, key, params, x), and pass (xs, jax.numpy.arange(max_steps)) as xs."


def _first_step(leaf: Any) -> Any:
    return one_step(leaf) if is_ref(leaf) else leaf[0]
