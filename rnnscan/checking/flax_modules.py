"""Make a `Model` of a module of `flax.linen` or `flax.nnx`."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.flax_modules import is_module_of
from rnnscan._util.messages import describe
from rnnscan.checking.model import Model
from rnnscan.nets.pieces import BOTH_DIRECTIONS, REVERSED


# The options that calls of modules may take.
_CALL = ("reset", "seq_lengths", "reverse", "key", "first_step")
# The options that are attributes of a module.
_ATTRIBUTES = ("memory", "engine", "parallel")


def of_module(
    module: Any, arguments: tuple[Any, ...], carry: Any, time_major: bool | None
) -> tuple[Model, tuple[Any, Any, Any]]:
    """A module and its arguments: (module, variables, xs) of linen, (module, xs) of nnx.

    Raises:
        TypeError: if the arguments do not fit.
    """
    of_linen = is_module_of(module, "linen")
    call = "check(module, variables, xs)" if of_linen else "check(module, xs)"
    if len(arguments) != (2 if of_linen else 1):
        raise TypeError(
            f"check: a module of {'linen' if of_linen else 'nnx'} takes {call}; got {len(arguments)} arguments after "
            f"{type(module).__name__}."
        )
    if of_linen:
        variables, xs = arguments
        run_module = _run_linen(module)
    else:
        (xs,) = arguments
        run_module, variables = _run_nnx(module)
    taken = set(inspect.signature(type(module).__call__).parameters)
    is_time_major = bool(getattr(module, "time_major", False)) if time_major is None else time_major
    if not is_time_major:
        xs = jax.tree.map(_swap, xs)
    # A call with this argument takes the layout of the checks, so only other modules transpose.
    layout = {"time_major": True} if "time_major" in taken else {}
    transposes = not is_time_major and not layout
    returns_carry = {"initial_carry", "return_carry"} <= taken

    def run(params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
        attributes = {name: options.pop(name) for name in _ATTRIBUTES if name in options}
        calls = {name: value for name, value in options.items() if value is not None}
        if transposes:
            xs = jax.tree.map(_swap, xs)
            calls |= {name: _swap(calls[name]) for name in ("reset",) if name in calls}
        if calls.pop("reverse", False):
            calls |= {"reverse": True, "keep_order": True}
        if returns_carry:
            calls |= {"initial_carry": carry, "return_carry": True}
        results = run_module(params, xs, attributes, calls | layout)
        new_carry, ys = results if returns_carry else ((), results)
        return new_carry, jax.tree.map(_swap, ys) if transposes else ys

    both_directions = hasattr(module, "forward_rnn") and hasattr(module, "backward_rnn")
    options = {name for name in _CALL if name in taken} | {name for name in _ATTRIBUTES if hasattr(module, name)}
    if both_directions:
        options -= {"reverse"}  # It ignores the argument.
    if returns_carry:
        options |= {"carry"}
    model = Model(
        title=type(module).__name__,
        kind="module",
        run=run,
        options=frozenset(options),
        start=(lambda params, xs: _start(module, xs)) if returns_carry and _start_of(module) else None,
        backward=BOTH_DIRECTIONS if both_directions else REVERSED if getattr(module, "reverse", False) else None,
        cell=module,
    )
    return model, (variables, carry, xs)


def _start_of(module: Any) -> bool:
    """Whether the initial carry of a module is known without a run."""
    if hasattr(module, "forward_rnn") and hasattr(module, "backward_rnn"):
        return _start_of(module.forward_rnn) and _start_of(module.backward_rnn)
    return hasattr(getattr(module, "cell", None), "initialize_carry")


def _start(module: Any, xs: Any) -> Any:
    if hasattr(module, "forward_rnn"):
        return _start(module.forward_rnn, xs), _start(module.backward_rnn, xs)
    if is_module_of(module, "linen"):
        return module.cell.initialize_carry(jax.random.key(0), xs.shape[1:])
    from flax import nnx

    return module.cell.initialize_carry(xs.shape[1:], nnx.Rngs(0))


def _run_linen(module: Any) -> Callable[..., Any]:
    def run(variables: Any, xs: Any, attributes: dict[str, Any], calls: dict[str, Any]) -> Any:
        return (module.clone(**attributes) if attributes else module).apply(variables, xs, **calls)

    return run


def _run_nnx(module: Any) -> tuple[Callable[..., Any], Any]:
    from flax import nnx

    graphdef, state = nnx.split(module)

    def run(state: Any, xs: Any, attributes: dict[str, Any], calls: dict[str, Any]) -> Any:
        copy = nnx.merge(graphdef, jax.tree.map(lambda leaf: leaf, state))
        for name, value in attributes.items():
            setattr(copy, name, value)
        return copy(xs, **calls)

    return run, state


def _swap(leaf: Any) -> Any:
    """Exchange time and batch."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((leaf.shape[1], leaf.shape[0], *leaf.shape[2:]), leaf.dtype)
    if leaf.ndim < 2:
        raise TypeError(f"check: the inputs of a module must have a batch and a time axis; got {describe(leaf)}.")
    return jnp.swapaxes(leaf, 0, 1)
