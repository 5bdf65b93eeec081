"""recurrent_net(): a step over named values, with links from outputs to states, translated onto scan()."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer

from rnnscan import _checks as checks
from rnnscan._net import wiring
from rnnscan._net.trace import trace_outputs
from rnnscan._net.wiring import Wiring
from rnnscan._util.messages import describe
from rnnscan._util.step_wrappers import Padding, hold_last_valid, select_rows
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.newton import Newton
from rnnscan.scanning import scan


# The default, distinguished by identity from a caller's Memory(), which contradicts `recompute`.
_EVERY_NAME = Memory()


def recurrent_net(
    cell_net: Callable[..., Mapping[str, Any]],
    params: Any,
    *,
    inputs: Mapping[str, Any],
    initial_cell_inputs: Mapping[str, Any],
    links: Mapping[str, str],
    aliases: Mapping[str, tuple[str, int]] | None = None,
    timestep: str | None = None,
    scope: str | None = None,
    outputs_with_grads: tuple[str, ...] | tuple[int, ...] | None = None,
    recompute: tuple[str, ...] | Literal["all"] = (),
    memory: Memory | MemoryBudget | None = _EVERY_NAME,
    forward_only: bool = False,
    seq_lengths: Integer[Array, " batch"] | None = None,
    mask: Bool[Array, "time batch"] | None = None,
    reset: Bool[Array, "time batch"] | None = None,
    reset_to: Mapping[str, Any] | None = None,
    padding: Padding = "hold",
    reverse: bool = False,
    engine: Literal["auto", "fission", "lax"] = "auto",
    parallel: Newton | None = None,
) -> dict[str, Any]:
    """Run a step over named values; links feed its outputs back as states of the next step.

    Args:
        cell_net: a pure function `cell_net(params, **blobs) -> {output: value}` of the inputs and states of one step.
        params: the parameters of `cell_net`.
        inputs: `{name: (T, N, ...)}`, at least one; the cell gets `(N, ...)`.
        initial_cell_inputs: `{state: (N, ...)}` before the first step. A state `(H,)` is shared by the batch, and its
            gradient is the sum over it.
        links: `{state: output}`: the output at step t is the state at step t + 1. Every state needs a link.
        aliases: `{name: (state, offset)}` adds results: the T + 1 states before, between and after the steps, from
            `offset` on. Offset 0 includes the initial state, 1 begins after the first step, and -1 is only the last
            state, `(1, N, ...)`. With `reverse`, `offset` counts in run order; the result is in time order, with the
            initial state last.
        timestep: the name of the step's index, an int32 scalar from 0 to T - 1, among the cell's arguments.
        scope: a prefix of the names of the results, `"scope/hidden_t_all"`, and of the operations in profiles.
        outputs_with_grads: the results that pass gradients on; the others are stopped. Names, without the scope, or
            positions among the results, as in Caffe2. None: all of them.
        recompute: names to recompute on the backward pass; short for `memory=Memory(recompute=...)`.
        memory: what to keep for the backward pass, as in `scan`; not with `recompute`. None: plain autodiff.
        forward_only: keep nothing for a backward pass; differentiating is an error.
        seq_lengths: `(N,)` integers, as in `scan`.
        mask: `(T, N)` booleans, as in `scan`.
        reset: `(T, N)` booleans: where true, the row's states go back to `reset_to` before the step.
        reset_to: `{state: (N, ...) or (H,)}`, the states at the start of an episode; required with `reset`. The initial
            states are no default, because in a later window they are the states of the window before.
        padding: the values at padded steps, as in `scan`. The default holds state and output. Before a row's first
            valid step a linked output then holds the initial state, as in Caffe2; other outputs are zero.
        reverse: run from the last step to the first.
        engine: as in `scan`.
        parallel: as in `scan`.

    Returns:
        A dictionary. For each linked output `hidden_t`, in the order of `links`: `hidden_t_all` `(T, N, ...)` and
        `hidden_t_last` `(N, ...)`, the state after the last step. Then `_all` of each unlinked output, and the aliases.

    Raises:
        TypeError: if `cell_net` does not return a dictionary, a state and its linked output differ in dtype, or a
            `forward_only` function is differentiated.
        ValueError: if a name is missing, unknown or duplicate, shapes do not fit, or only one of `reset` and `reset_to`
            is given.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def cell_net(params, input_t, hidden_t_prev):
        ...     gates = rs.name(input_t @ params["kernel"] + hidden_t_prev @ params["recurrent_kernel"], "gates")
        ...     return {"hidden_t": jnp.tanh(gates)}
        >>> outputs = rs.recurrent_net(
        ...     cell_net,
        ...     {"kernel": jnp.ones((3, 4)), "recurrent_kernel": jnp.eye(4)},
        ...     inputs={"input_t": jnp.ones((5, 2, 3))},
        ...     initial_cell_inputs={"hidden_t_prev": jnp.zeros(4)},
        ...     links={"hidden_t_prev": "hidden_t"},
        ...     aliases={"hidden_t_states": ("hidden_t_prev", 0)},
        ...     recompute=("gates",),
        ... )
        >>> {name: value.shape for name, value in outputs.items()}
        {'hidden_t_all': (5, 2, 4), 'hidden_t_last': (2, 4), 'hidden_t_states': (6, 2, 4)}

    Source: Caffe2's `recurrent.recurrent_net` and its RecurrentNetwork operator.
    """
    wires = Wiring(inputs, initial_cell_inputs, links, aliases or {}, timestep, outputs_with_grads)
    wires.check()
    memory = _memory(recompute, memory, forward_only=forward_only, outputs_with_grads=outputs_with_grads)
    inputs = checks.as_arrays(dict(inputs), "inputs")
    length, x = wiring.length_and_step(inputs)
    wires.check_signature(cell_net)
    for alias, (_, offset) in wires.aliases.items():
        wiring.check_offset(alias, offset, length)
    states = {
        state: wiring.shared("initial_cell_inputs", state, value, x) for state, value in initial_cell_inputs.items()
    }
    checks.check_params(params, function="recurrent_net")
    wires.check_reset(reset, reset_to)
    if reset_to is not None:
        reset_to = {state: wiring.shared("reset_to", state, reset_to[state], x) for state in states}
    if forward_only:
        params, inputs, states, reset_to = _forbid_gradient((params, inputs, states, reset_to))
    steps = {} if timestep is None else {timestep: jnp.arange(length, dtype=jnp.int32)}
    xs = {**inputs, **steps}

    with jax.named_scope(scope or "recurrent_net"):
        order = trace_outputs(wires, cell_net, params, states, xs)
        final_states, ys = scan(
            _LinkedCell(cell_net, tuple(links.items())),
            params,
            states,
            xs,
            reverse=reverse,
            memory=None if forward_only else memory,
            seq_lengths=seq_lengths,
            mask=mask,
            reset=reset,
            reset_to=reset_to,
            padding=padding,
            engine=engine,
            parallel=parallel,
        )
        valid = checks.validity(seq_lengths, mask, length)
        if valid is not None and padding == "hold":
            before = {output: states[state] for state, output in links.items()}
            ys |= _hold_before_valid(before, {output: ys[output] for output in before}, valid, reverse=reverse)
        results: dict[str, Any] = {}
        for state, output in links.items():
            results |= {f"{output}_all": ys[output], f"{output}_last": final_states[state]}
        results |= {f"{output}_all": ys[output] for output in order}
        for alias, (state, offset) in wires.aliases.items():
            after = ys[links[state]]
            if valid is not None and padding == "zero":
                after = hold_last_valid(after, valid, before=states[state].astype(after.dtype), reverse=reverse)
            results[alias] = _from_offset(states[state], after, offset, reverse=reverse)

    if outputs_with_grads is not None:
        flowing = wires.results_with_grads(order)
        stopped = jax.lax.stop_gradient(results)
        results = {name: (results if name in flowing else stopped)[name] for name in results}
    if forward_only:  # Again, because the cell may close over arrays.
        results = _forbid_gradient(results)
    return {f"{scope}/{result}" if scope else result: value for result, value in results.items()}


@dataclass(frozen=True)
class _LinkedCell:
    """A function's step as a cell: the carry is its states, y all its outputs."""

    cell_net: Callable[..., Mapping[str, Any]]
    links: tuple[tuple[str, str], ...]
    # Inspection would follow `__wrapped__`, where a run-time type checker wraps `__call__`.
    __signature__ = inspect.signature(lambda params, states, x: None)

    def __call__(self, params: Any, states: dict[str, Any], x: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs = dict(self.cell_net(params, **x, **states))
        return {state: outputs[output] for state, output in self.links}, outputs

    @property
    def __wrapped__(self) -> Callable[..., Mapping[str, Any]]:
        """The function, which JAX's messages name."""
        return self.cell_net


def _memory(
    recompute: Any, memory: Memory | MemoryBudget | None, *, forward_only: bool, outputs_with_grads: Any
) -> Memory | MemoryBudget | None:
    chosen = memory is not _EVERY_NAME
    if chosen and recompute != ():
        raise ValueError(
            "recurrent_net: only one of `recompute` and `memory` may be given; got "
            f"recompute={recompute!r} and memory={memory!r}. Put the names into Memory(recompute=...)."
        )
    if forward_only and (chosen or recompute != () or outputs_with_grads is not None):
        raise ValueError(
            "recurrent_net: `forward_only` must be given without `recompute`, `memory` and `outputs_with_grads`; got "
            f"recompute={recompute!r}, memory={memory!r}, outputs_with_grads={outputs_with_grads!r}. Leave them out, "
            "or set forward_only=False."
        )
    return memory if recompute == () else Memory(recompute=recompute)


def _hold_before_valid(before: Any, ys: Any, valid: Bool[Array, "time batch"], *, reverse: bool) -> Any:
    """Replace `ys` `(T, N, ...)` by `before` `(N, ...)` before each row's first valid step."""

    # Without the checkpoint autodiff keeps `begun` broadcast to the size of ys.
    @partial(jax.checkpoint, prevent_cse=False)
    def hold(before: Any, ys: Any, valid: Array) -> Any:
        steps = jnp.arange(valid.shape[0])[:, None]
        if reverse:
            begun = steps <= jnp.max(jnp.where(valid, steps, -1), axis=0, keepdims=True, initial=-1)
        else:
            begun = steps >= jnp.min(
                jnp.where(valid, steps, valid.shape[0]), axis=0, keepdims=True, initial=valid.shape[0]
            )
        before = jax.tree.map(lambda state, y: jnp.broadcast_to(state, y.shape).astype(y.dtype), before, ys)
        return select_rows(begun, ys, before)

    return hold(before, ys, valid)


def _from_offset(initial: Array, after: Array, offset: int, *, reverse: bool) -> Array:
    """The states before, between and after the steps, from `offset` on, in the order of time."""
    states = jnp.concatenate([after, initial[None]] if reverse else [initial[None], after])
    begin = offset if offset >= 0 else len(states) + offset
    return states[: len(states) - begin] if reverse else states[begin:]


def _forbid_gradient(tree: Any) -> Any:
    """The same values, which raise an error when differentiated."""

    def forbid(leaf: Any) -> Any:
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)
        return _without_gradient(leaf) if is_float or isinstance(leaf, float) else leaf

    return jax.tree.map(forbid, tree)


@jax.custom_jvp
def _without_gradient(leaf: Any) -> Any:
    return leaf


@_without_gradient.defjvp
def _raise_on_gradient(primals: Any, tangents: Any) -> Any:
    raise TypeError(
        "recurrent_net: a function with `forward_only=True` must not be differentiated; got a derivative of "
        f"{describe(primals[0])} among its arguments or results. Set forward_only=False, or put jax.lax.stop_gradient "
        "around its arguments."
    )
