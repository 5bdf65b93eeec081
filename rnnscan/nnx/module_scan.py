"""A module of `flax.nnx` as a pure step, and the scan over it.

A module owns its state as `Variable`s; a scan takes values. So the variables are split off before the scan, each step
merges them into a copy of the module, and changes are written back after the scan.

A variable that no step changes becomes a parameter of the scan, even if `state_axes` carries it. The result is the
same, and the module also works where Flax allows no changes, as under `jax.grad`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from rnnscan._flax.sequence import Call, cell_name
from rnnscan.naming import trace_step
from rnnscan.scan_runner import around_step
from rnnscan.scanning import scan


# Pairs of a filter of variables and their axis; the first filter that matches decides.
Axes: TypeAlias = Sequence[tuple[Any, Any]]


def scan_module(module: Any, call: Call, carry: Any, xs: Any, *, state_axes: Axes, **options: Any) -> tuple[Any, Any]:
    """Run a module over time.

    Args:
        module: the module; its changed state is written back to it.
        call: one step, `(module, carry, x) -> (carry, y)`.
        carry: the initial carry.
        xs: the inputs, time-major.
        state_axes: as in `nnx.RNN`.
        options: options of `rnnscan.scan`.

    Returns:
        The last carry, and the outputs of all steps, time-major.

    Raises:
        ValueError: if a step creates or deletes variables without a time axis.
        TypeError, ValueError: as `rnnscan.scan` does.
    """
    axes = _broadcast_unchanged(module, call, carry, xs, state_axes)
    numbers = [axis for _, axis in axes if isinstance(axis, int)]
    graphdef, constant, carried, stepwise = _split(module, axes)

    def step(constant: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        (carry, carried), (x, stepwise) = carry, x
        carry, y, states = _step(call, graphdef, axes, (constant, carried, stepwise), carry, x)
        _, carried, stepwise = states
        return (carry, carried), (y, stepwise)

    step.__name__ = cell_name(module)
    stepwise = [_move_axis(state, axis, 0) for state, axis in zip(stepwise, numbers, strict=True)]
    cell = around_step(module, step)
    (carry, carried), (ys, stepwise) = scan(cell, constant, (carry, carried), (xs, stepwise), **options)
    stepwise = [_move_axis(state, 0, axis) for state, axis in zip(stepwise, numbers, strict=True)]
    if jax.tree.leaves((carried, stepwise)):
        nnx.update(module, *carried, *stepwise)
    return carry, ys


def _broadcast_unchanged(module: Any, call: Call, carry: Any, xs: Any, axes: Axes) -> Axes:
    """The same axes, but None for carried variables that never change."""
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
    """The paths of the variables that a step changes, found by tracing one."""
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
    """The module's graph definition, and its constant, carried and stepwise states."""
    graphdef, *states = nnx.split(module, *(variables for variables, _ in axes))
    with_axes = [(state, axis) for state, (_, axis) in zip(states, axes, strict=True)]
    return (
        graphdef,
        [state for state, axis in with_axes if axis is None],
        [state for state, axis in with_axes if axis is nnx.Carry],
        [state for state, axis in with_axes if isinstance(axis, int)],
    )


def _step(call: Call, graphdef: Any, axes: Axes, states: Any, carry: Any, x: Any) -> tuple[Any, Any, Any]:
    """One step of a copy of the module: the new carry, y, and the new states in the same groups."""
    # Copied, because a variable can change only in the trace that made it.
    copy = nnx.merge(graphdef, *jax.tree.map(lambda leaf: leaf, [state for group in states for state in group]))
    carry, y = call(copy, carry, x)
    _, *after = _split(copy, axes)
    return carry, y, after


def _move_axis(tree: Any, source: int, destination: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, source, destination), tree)


def _values(states: Iterable[Any]) -> dict[Any, list[Any]]:
    """The arrays of each variable, by its path."""
    return {path: jax.tree.leaves(variable) for state in states for path, variable in nnx.to_flat_state(state)}


def _are_same(leaves: list[Any], expected: list[Any]) -> bool:
    return len(leaves) == len(expected) and all(map(lambda a, b: a is b, leaves, expected))


def _check_same_variables(before: Any, after: Any) -> None:
    """Reject a step that creates or deletes variables, except stepwise ones."""
    old, new = (_values([state for group in states for state in group]) for states in (before, after))
    stepwise, carried = _values(after[2]), _values(before[1])
    changes = {
        "creates": [path for path in new if path not in old and path not in stepwise],
        "deletes": [path for path in old if path not in new],
        "fills or empties": [path for path in carried if path in new and len(new[path]) != len(old[path])],
    }
    what = [f"{verb} {', '.join(map(_place, paths))}" for verb, paths in changes.items() if paths]
    if what:
        raise ValueError(
            f"nnx.RNN: a step must not create or delete variables of the cell; got one that {' and '.join(what)}. "
            "Create them in the cell's `__init__`, or give sown ones a time axis: "
            "state_axes=nnx.StateAxes({nnx.Intermediate: 0, ...: nnx.Carry})."
        )


def _place(path: Any) -> str:
    return f"`{'.'.join(map(str, ('cell', *path)))}`"
