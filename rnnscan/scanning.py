"""scan(): run any cell over time.

`prepare` checks the arguments and adds padding and resets to the step; an engine runs the result.
"""

import warnings
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer

from rnnscan import _checks as checks
from rnnscan._util.high_types import HighTypeError, high_type_reason
from rnnscan._util.messages import is_count
from rnnscan._util.sources import scope_of
from rnnscan._util.step_wrappers import Padding
from rnnscan.engine.run.execute import run_call
from rnnscan.engine.run.plain_scan import run_plain
from rnnscan.memory import Memory, MemoryBudget, without_training
from rnnscan.newton import Newton
from rnnscan.planning.choose import fit
from rnnscan.protocols import Cell
from rnnscan.scan_observer import observed_scan
from rnnscan.scan_runner import runner_of


def scan(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    memory: Memory | MemoryBudget | None = Memory(),
    seq_lengths: Integer[Array, "*batch"] | None = None,
    mask: Bool[Array, " time *batch"] | None = None,
    reset: Bool[Array, " time *batch"] | None = None,
    reset_to: Any = None,
    padding: Padding = "zero",
    truncate: int | None = None,
    engine: Literal["auto", "fission", "lax"] = "auto",
    parallel: Newton | None = None,
    key: Array | None = None,
    first_step: Any = 0,
) -> tuple[Any, Any]:
    """Run a cell over time. `memory` controls which values are kept for the backward pass.

    With the default arguments, this computes

        ys = []
        for x in xs:
            carry, y = cell(params, carry, x)
            ys.append(y)
        return carry, stack(ys)

    Like `lax.scan`, it takes any pytrees as params, carry, xs and ys, also with integer and key-typed leaves. Arrays
    that the cell closes over get gradients. It works under `jit`, `grad` and `vmap`, and in gradients of gradients.

    Args:
        cell: a pure function `cell(params, carry, x) -> (carry, y)`. The new carry has the structure, shapes and
            dtypes of the old one; y may be None.
        params: the cell's parameters, any pytree.
        carry: the carry before the first step. A leaf may leave out the batch axis, `(H,)` for `(N, H)`: the rows share
            it, and its gradient is the sum over them.
        xs: the inputs, time-major: a pytree of leaves `(T, ...)`; or None, with `length`.
        length: T; needed without `xs`, else it must agree with `xs`.
        reverse: run from the last step to the first; `ys` stays in the order of `xs`.
        unroll: steps per iteration of the loop, as in `lax.scan`. 2 to 4 can pay on a CPU; compile time grows with it.
        memory: the memory choice (`Memory`), or a budget (`Memory.fit`); None: plain autodiff of `lax.scan`.
        seq_lengths: `(N,)` integers: step t of row n is valid where `t < seq_lengths[n]`. They must be from 0 to T,
            which is checked where their values are known, outside of `jax.jit`.
        mask: `(T, N)` booleans, true at valid steps; an alternative to `seq_lengths`.
        reset: `(T, N)` booleans: where true, the row's carry returns to `reset_to` before the step reads its input.
            Resets at padded steps have no effect.
        reset_to: the carry after a reset, like `carry`; rows share a leaf `(H,)`. None: the cell's own
            `initial_carry`, never the `carry` argument, so that windows of a sequence equal the whole. A plain function
            has no `initial_carry` and needs `reset_to`. Gradients flow into it.
        padding: the results of padded steps. "zero": the carry is held and y is zero. "hold": the carry is held and y
            is the last valid one, zero before any. "drop": carry and y are zero.
        truncate: no gradient flows through the carry into steps `truncate`, `2 * truncate`, ..., in running order.
            Padded steps count: a row that ends before the last of these has no gradient of its final carry.
        engine: "fission" runs only recurrent work step by step (`rnnscan.explain` shows the split). "lax" is one plain
            `lax.scan` over a checkpointed cell: the reference. "auto" picks fission where it can, and else lax: for
            cells with side effects, and with a kept name inside a vmap or a branch. A small loop on a CPU is one kernel
            with "auto". Both engines keep the same names, and support forward and reverse mode in every order.
        parallel: how to solve nonlinear loops over many steps in parallel (`Newton`); None: they run step by step.
            Loops that do not converge run step by step, so the results are the same to rounding.
        key: a PRNG key for dropout and other random choices of the cell: training. None: evaluation, without them.
        first_step: the number of the first step, which random choices depend on. Pass the steps done so far to run a
            sequence in pieces with one key.

    With `seq_lengths`, `mask` or `reset`, leaves of carry and y are `(N, ...)`. Leaves of xs are `(T, N, ...)`, or
    `(T,)` if all rows share them. A row without a batch axis has a scalar `seq_lengths`, and `mask` and `reset` are
    `(T,)`. The cell reads zeros in place of padded inputs, and must be finite there. Padding values, NaN included,
    reach neither values nor gradients.

    A cell with side effects, such as `jax.experimental.io_callback`, is never recomputed, so that they happen once a
    step; a memory choice that recomputes is an error. `jax.debug` prints again where a memory choice asks to
    recompute steps. Collectives over named axes are no side effects.

    Under `jax.disable_jit()` the cell runs on values in a Python loop, as with `lax.scan`: it may print them, branch on
    them or stop in a debugger. The first step may run twice, to find the types of its results. All is kept.

    Outside `jax.jit`, `scan` caches compiled programs, as `lax.scan` does, by cell, options and shapes: plain functions
    by identity, cells of the library by value. A function that closes over arrays is traced at every call, so that it
    reads the arrays that it closes over now. It compiles again when a number changes that it closes over or reads from
    its module, or a NumPy array of which it reads an item or a shape. Of such arrays above 1 MiB, and of lists,
    dictionaries and objects, items are read once, as under `jax.jit`. A NumPy array up to 1 MiB that changes in place
    warns (`ChangedArrayWarning`) if JAX may keep its old values. A new lambda compiles. A training step belongs under
    `jax.jit`.

    Returns:
        The carry after the last step, and the stacked y of all steps: leaves `(T, ...)`.

    Raises:
        TypeError: if a structure or dtype is wrong, such as a carry that the cell returns with another type, or `key`
            is not a PRNG key.
        ValueError: if a value or shape is wrong, or `memory` has a name that the cell does not define.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan import cells
        >>> cell = cells.LSTM(8)
        >>> xs = jnp.ones((5, 2, 3))  # five steps, two rows, three features
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> memory = rs.Memory(recompute=("gates",))
        >>> (hidden, state), ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)
        >>> hidden.shape, state.shape, ys.shape
        ((2, 8), (2, 8), (5, 2, 8))
    """
    options: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll, "padding": padding}
    options |= {"truncate": truncate, "engine": engine, "parallel": parallel}
    rows = {"seq_lengths": seq_lengths, "mask": mask, "reset": reset, "reset_to": reset_to}
    rows |= {"key": key, "first_step": jnp.asarray(first_step)} if key is not None else {}
    results = observed_scan(cell, params, carry, xs, {**options, **rows, "memory": memory})
    if results is not None:
        return results
    memory = without_training(memory)
    if isinstance(memory, MemoryBudget):
        memory = fit(memory, scan, cell, params, carry, xs, options | rows)
    options["memory"] = memory
    if reason := high_type_reason(carry=carry, xs=xs):
        with scope_of(cell):
            return run_plain(cell, {"params": params, "carry": carry, "xs": xs, **rows}, options, reason)
    xs, carry = checks.as_arrays(xs, "xs"), checks.as_arrays(carry, "carry")
    checks.check_params(params)
    checks.check_time_is_whole(xs)
    arrays = {"params": params, "carry": carry, "xs": xs, **rows}
    steps = checks.sequence_length(xs, length)
    checks.check_lengths(seq_lengths, steps)
    runner = runner_of(cell) if is_count(steps, least=1) else None
    if runner is not None:
        options.pop("length")
        return runner.run_scan(params, carry, xs, steps, {**options, **rows})
    with scope_of(cell):
        try:
            results = run_call(cell, arrays, options, steps)
        except HighTypeError as error:  # A trace of the step told what it returns.
            return run_plain(cell, arrays, options, error.reason)
    if memory is not None and not getattr(jax.config, "jax_disable_jit", False):
        _warn_if_nothing_is_saved(memory, steps, unroll)
    return results


def _warn_if_nothing_is_saved(memory: Memory, length: Any, unroll: int | bool) -> None:
    if memory.offload and jax.default_backend() == "cpu":
        warnings.warn(
            f"scan: offload={memory.offload!r} saves nothing on a CPU, because its memory is the host's. "
            "Use `recompute` or `segment`.",
            stacklevel=3,
        )
    # Without a choice the call needs no more memory than `lax.scan` does, so nothing is lost.
    asks_to_save = memory.recompute != () or memory.offload != ()
    unrolls_all = unroll is True or (is_count(length, least=2) and length <= unroll)
    if asks_to_save and unrolls_all and length != 1 and memory.segment is None:
        warnings.warn(
            f"scan: unroll={unroll} leaves no loop of the {length} steps, so XLA merges the recomputation with the "
            "forward pass, and the memory choice saves nothing. Unroll fewer, or set `segment`, or memory=None.",
            stacklevel=3,
        )
