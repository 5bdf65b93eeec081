"""A module of `flax.nnx` as a pure step, and the scan over it.

A module owns its parameters and other state as `Variable`s; a scan wants them as values. So they are split off the
module before the scan and merged into a copy of it within each step, and what the steps changed is written back after.

What no step changes is a parameter of the scan, even where the module's state is said to be carried: the result is the
same, and a module that no step changes can be used anywhere, also where Flax allows no change, as under `jax.grad`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from rnnscan.naming import trace_step
from rnnscan.scan import scan


# (module, carry, x) -> (carry, y)
Call: TypeAlias = Callable[[Any, Any, Any], tuple[Any, Any]]
# Pairs of a filter of variables and their axis; the first filter that holds decides.
Axes: TypeAlias = Sequence[tuple[Any, Any]]


def scan_module(module: Any, call: Call, carry: Any, xs: Any, *, state_axes: Axes, **options: Any) -> tuple[Any, Any]:
    """Run a module over time.

    Args:
        module: the module. What the steps change of its state is written back to it.
        call: one step of it, `(module, carry, x) -> (carry, y)`.
        carry: the carry before the first step.
        xs: the inputs, time-major.
        state_axes: for each of the module's variables `nnx.Carry` if each step gets it as the step before left it; None
            if each gets it as it is before the scan, and what a step does to it is forgotten; or the number of the axis
            along which each step has a value of its own.
        options: of `rnnscan.scan`.

    Returns:
        The last carry, and the outputs of all steps, time-major.

    Raises:
        ValueError: if a step creates or deletes variables that have no axis for the steps.
        TypeError, ValueError: as `rnnscan.scan` does.
    """
    axes = _broadcast_what_stays(module, call, carry, xs, state_axes)
    numbers = [axis for _, axis in axes if isinstance(axis, int)]
    graphdef, constant, carried, stepwise = _split(module, axes)

    def step(constant: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        (carry, carried), (x, stepwise) = carry, x
        carry, y, states = _step(call, graphdef, axes, (constant, carried, stepwise), carry, x)
        _, carried, stepwise = states
        return (carry, carried), (y, stepwise)

    stepwise = [_move_axis(state, axis, 0) for state, axis in zip(stepwise, numbers, strict=True)]
    (carry, carried), (ys, stepwise) = scan(step, constant, (carry, carried), (xs, stepwise), **options)
    stepwise = [_move_axis(state, 0, axis) for state, axis in zip(stepwise, numbers, strict=True)]
    if jax.tree.leaves((carried, stepwise)):
        nnx.update(module, *carried, *stepwise)
    return carry, ys


def _broadcast_what_stays(module: Any, call: Call, carry: Any, xs: Any, axes: Axes) -> Axes:
    """The same axes, but None for what is carried and never changed."""
    changing = _paths_that_change(module, call, carry, xs, axes)

    def changes(path: Any, variable: Any) -> bool:
        return path in changing

    refined: list[tuple[Any, Any]] = []
    for variables, axis in axes:
        if axis is nnx.Carry:
            refined += [(nnx.All(variables, changes), nnx.Carry), (variables, None)]
        else:
            refined.append((variables, axis))
    return refined


def _paths_that_change(module: Any, call: Call, carry: Any, xs: Any, axes: Axes) -> set[Any]:
    """Where the variables are to which a step gives another value, found by tracing one."""
    numbers = [axis for _, axis in axes if isinstance(axis, int)]
    graphdef, constant, carried, stepwise = _split(module, axes)
    changing: set[Any] = set()

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        (carry, carried), (x, stepwise) = carry, x
        before = (constant, carried, stepwise)
        carry, y, after = _step(call, graphdef, axes, before, carry, x)
        _check_same_variables(before, after)
        values_after = _values(after[1])
        changing.update(path for path, leaves in _values(carried).items() if not _are_same(leaves, values_after[path]))
        return carry, y

    stepwise = [_move_axis(state, axis, 0) for state, axis in zip(stepwise, numbers, strict=True)]
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (xs, stepwise))
    trace_step(step, (carry, carried), x)
    return changing


def _split(module: Any, axes: Axes) -> tuple[Any, list[Any], list[Any], list[Any]]:
    """What a module is, and its states that are constant, that are carried, and that each step has its own of."""
    graphdef, *states = nnx.split(module, *(variables for variables, _ in axes))
    with_axes = [(state, axis) for state, (_, axis) in zip(states, axes, strict=True)]
    return (
        graphdef,
        [state for state, axis in with_axes if axis is None],
        [state for state, axis in with_axes if axis is nnx.Carry],
        [state for state, axis in with_axes if isinstance(axis, int)],
    )


def _step(call: Call, graphdef: Any, axes: Axes, states: Any, carry: Any, x: Any) -> tuple[Any, Any, Any]:
    """One step of a copy of the module: the new carry, y, and the states after it, grouped as before."""
    # Rebuilt, because a variable can be changed only within the trace that made it.
    copy = nnx.merge(graphdef, *jax.tree.map(lambda leaf: leaf, [state for group in states for state in group]))
    carry, y = call(copy, carry, x)
    _, *after = _split(copy, axes)
    return carry, y, after


def _move_axis(tree: Any, source: int, destination: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, source, destination), tree)


def _values(states: Iterable[Any]) -> dict[Any, list[Any]]:
    """The arrays of each variable, by its path."""
    return {path: jax.tree.leaves(variable) for state in states for path, variable in nnx.to_flat_state(state)}


def _are_same(leaves: list[Any], others: list[Any]) -> bool:
    return len(leaves) == len(others) and all(map(lambda a, b: a is b, leaves, others))


def _check_same_variables(before: Any, after: Any) -> None:
    """Refuse a step that makes or deletes variables, but for those that each step has its own of."""
    given, left = (_values([state for group in states for state in group]) for states in (before, after))
    stepwise, carried = _values(after[2]), _values(before[1])
    changes = {
        "creates": [path for path in left if path not in given and path not in stepwise],
        "deletes": [path for path in given if path not in left],
        "fills or empties": [path for path in carried if path in left and len(left[path]) != len(given[path])],
    }
    what = [f"{verb} {', '.join(map(_place, paths))}" for verb, paths in changes.items() if paths]
    if what:
        raise ValueError(
            f"nnx.RNN: a step must leave the cell with the variables that it had; got one that {' and '.join(what)}. "
            "Make them in the cell's `__init__`, or give what each step makes anew, such as what it sows, an axis for "
            "the steps: state_axes=nnx.StateAxes({nnx.Intermediate: 0, ...: nnx.Carry})."
        )


def _place(path: Any) -> str:
    return f"`{'.'.join(map(str, ('cell', *path)))}`"
