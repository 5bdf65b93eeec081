"""Checks and the run of loops that stop by a condition."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import ref

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.messages import describe, in_words, is_count
from rnnscan._util.varying import vary, varying
from rnnscan.checkpointing import NestedScan
from rnnscan.engine.cache.program_cache import run_compiled
from rnnscan.engine.run.run_until import run_until
from rnnscan.memory import Memory


def check_options(function: str, max_steps: Any, memory: Any) -> None:
    """Reject wrong values of `max_steps` and `memory`."""
    if not is_count(max_steps):
        raise ValueError(
            f"{function}: `max_steps` must be an integer of at least 1, known when the program is traced, because "
            f"memory for the backward pass is allocated for it; got {max_steps!r}."
        )
    if not isinstance(memory, Memory):
        raise TypeError(
            f"{function}: `memory` must be an rnnscan.Memory; got {memory!r}. JAX does not differentiate a "
            f"while_loop in reverse mode, and {function} has no plan for a budget."
        )
    if memory.offload:
        raise ValueError(
            f"{function}: named values cannot be kept in host memory; got offload={memory.offload!r}. Use `recompute` "
            "or `segment`."
        )
    if isinstance(memory.segment, NestedScan):
        raise ValueError(
            f"{function}: the number of steps is not known, so `segment` cannot be a schedule for one; got "
            f'{memory.segment!r}. Use a number of steps, a tuple of them, or "sqrt".'
        )


def run(
    function: str,
    cell: Callable[[Any, Any, Any], Any],
    params: Any,
    carry: Any,
    xs: Any,
    cond_fun: Callable[[Any, Any], Any],
    *,
    max_steps: int,
    memory: Memory,
    kept: bool = False,
) -> tuple[Any, Any, Any, Any]:
    """Run a cell until `cond_fun(params, carry)` is false, or `max_steps` have run.

    Args:
        function: the public function, for messages.
        cell: the cell.
        params: its parameters.
        carry: the initial carry.
        xs: leaves `(max_steps, ...)`, or None.
        cond_fun: whether another step runs; it returns a boolean scalar.
        max_steps: the most steps.
        memory: the memory choice.
        kept: whether the trace is cached for later calls.

    Returns:
        The number of steps, the carry, ys, and whether the condition still holds after the last step.
    """
    with errors_named(function):
        carry = vary(carry, _axes_of_stops(lambda carry: cond_fun(params, carry), carry))
        return run_until(function, cell, params, carry, xs, cond_fun, max_steps=max_steps, memory=memory, kept=kept)


@dataclass(frozen=True, repr=False)
class Pair:
    """A step and its condition, to cache programs by.

    A cached program must not keep a plain function alive, which may close over anything, so it holds a weak reference.
    """

    _step: Any
    _condition: Any

    @staticmethod
    def of(step: Any, condition: Any) -> "Pair":
        """A pair."""
        return Pair(*(ref(one) if isinstance(one, FunctionType) else one for one in (step, condition)))

    def __repr__(self) -> str:
        """The step, which messages name."""
        return in_words(self.functions()[0])

    def functions(self) -> tuple[Any, Any]:
        """The step and the condition, during a call that holds them."""
        step, condition = (one() if isinstance(one, ref) else one for one in (self._step, self._condition))
        return step, condition


def run_by_cached_program(run: Callable[..., Any], step: Any, condition: Any, arrays: Any, options: Any) -> Any:
    """`run(Pair.of(step, condition), **arrays, **options)`; outside of `jax.jit` by a cached program."""
    return run_compiled(run, Pair.of(step, condition), arrays, options)


def as_booleans(function: str, name: str, value: Any, *, rows: bool = False) -> Any:
    """The result of a condition as an array, if it is a boolean scalar; with `rows`, also if it is `(N,)` booleans."""
    if jax.tree_util.all_leaves([value]):
        value = jnp.asarray(value)
        if value.ndim <= rows and value.dtype == bool:
            return value
    got = describe(value) if jax.tree_util.all_leaves([value]) else f"the pytree {jax.tree.structure(value)}"
    if rows:
        raise TypeError(
            f"{function}: `{name}` must return booleans (N,), one for each row, or one boolean for all; got {got}. "
            "Compare the value with something."
        )
    raise TypeError(
        f"{function}: `{name}` must return a boolean scalar; got {got}. Compare the value with something, and reduce "
        "it over a batch by `.any()` or `.all()`."
    )


def raise_at_limit(function: str, limited: Any, max_steps: int) -> None:
    """Raise an error if a loop stopped at its limit; in a traced program, when it runs.

    Raises:
        RuntimeError: if it did.
    """

    def check(limited: Any) -> None:
        if limited.any():
            raise RuntimeError(
                f"{function}: the condition still holds after max_steps={max_steps} steps. Raise `max_steps`, or set "
                'on_limit="stop" to take the carry at the limit.'
            )

    if isinstance(limited, jax.core.Tracer):
        lax.cond(limited, lambda limited: jax.debug.callback(check, limited), lambda _: None, limited)
    else:
        check(limited)


@contextmanager
def errors_named(function: str) -> Iterator[None]:
    """A context in which errors of `scan` and its cell name this function and its step instead."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        if not message.startswith("scan: "):
            raise
        message = message.replace("scan:", f"{function}:")
        if function == "while_net":
            message = message.replace("a cell", "`body`").replace("the cell", "it")
            message = message.removesuffix(" Return None as y for `body` without an output.")
        raise type(error)(message) from error


def _axes_of_stops(cond_fun: Callable[[Any], Any], carry: Any) -> frozenset[str]:
    """The axes of a mesh over which devices stop at different steps, under `jax.shard_map`. The carry then varies."""
    if not any(varying(jax.typeof(leaf)) for leaf in jax.tree.leaves(carry)):
        return frozenset()
    (stops,) = jax.make_jaxpr(cond_fun)(carry).out_avals
    return varying(stops)
