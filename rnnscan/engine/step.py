"""One step as flat functions of arrays: forward, and with kept values restored, as the backward pass needs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from rnnscan.engine.kept import keeping, restoring
from rnnscan.naming import Names
from rnnscan.sequence import Step


@dataclass(frozen=True)
class FlatStep:
    """A step, traced. What it closes over is its first argument, so that it gets gradients.

    It does not hold these arrays: the backward pass lives on in JAX's caches, and must not hold a trace through them.

    Attributes:
        carry_size: number of leaves of the carry.
        y_structure: the structure of y.
        repeats: carry leaf -> y leaf that is the same value.
        has_effects: whether the step does more than compute.
    """

    carry_size: int
    y_structure: Any
    repeats: dict[int, int]
    has_effects: bool
    _forward: Any
    _backward: Any

    def forward(
        self, constants: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """The new carry, y, and the named values to keep."""
        results = _call(self._forward, constants, [*carry, *x])
        y_end = self.carry_size + self.y_structure.num_leaves
        return results[: self.carry_size], results[self.carry_size : y_end], results[y_end:]

    def restored(
        self, constants: Sequence[Any], carry: Sequence[Any], x: Sequence[Any], kept: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The new carry and y, with kept values in place of what made them; the function to differentiate."""
        results = _call(self._backward, constants, [*carry, *x, *kept])
        return results[: self.carry_size], results[self.carry_size :]


def flatten_step(step: Step, carry: Any, x: Any, *, kept: frozenset[str], names: Names) -> tuple[FlatStep, list[Any]]:
    """Trace a step.

    Args:
        step: `(carry, x) -> (carry, y)`.
        carry: a carry, or its shapes.
        x: one step's input, or its shapes.
        kept: labels of the values to keep.
        names: the names that the step uses.

    Returns:
        The step as flat functions, and the arrays that it closes over.
    """
    structure = jax.tree.structure((carry, x))
    size = len(jax.tree.leaves(carry))
    leaves = jax.tree.leaves((carry, x))
    positions: list[int] = []
    y_structure: Any = None

    def forward(*leaves: Any) -> list[Any]:
        nonlocal y_structure
        with keeping(kept, names) as kept_values:
            new_carry, y = step(*jax.tree.unflatten(structure, leaves))
            values = kept_values()
        positions[:] = values
        y_structure = jax.tree.structure(y)
        return [*jax.tree.leaves(new_carry), *jax.tree.leaves(y), *values.values()]

    traced, types = jax.make_jaxpr(forward, return_shape=True)(*leaves)
    results = traced.jaxpr.outvars
    kept_types = types[len(types) - len(positions) :]

    def backward(*leaves: Any) -> list[Any]:
        given = leaves[len(leaves) - len(positions) :]
        with restoring(kept, names, dict(zip(positions, given, strict=True))):
            new_carry, y = step(*jax.tree.unflatten(structure, leaves[: len(leaves) - len(positions)]))
        return [*jax.tree.leaves(new_carry), *jax.tree.leaves(y)]

    retraced = jax.make_jaxpr(backward)(*leaves, *kept_types)
    constants = list({id(const): const for const in [*traced.consts, *retraced.consts]}.values())
    place = {id(const): index for index, const in enumerate(constants)}
    y_leaves = {var: index for index, var in reversed(list(enumerate(results[size : size + y_structure.num_leaves])))}
    flat = FlatStep(
        carry_size=size,
        y_structure=y_structure,
        repeats={index: y_leaves[var] for index, var in enumerate(results[:size]) if _is_in(var, y_leaves)},
        has_effects=bool(traced.effects),
        _forward=(_opened(traced, leaves), [place[id(const)] for const in traced.consts]),
        _backward=(_opened(retraced, [*leaves, *kept_types]), [place[id(const)] for const in retraced.consts]),
    )
    return flat, constants


def one_step(leaf: Any) -> jax.ShapeDtypeStruct:
    """The type of one step of a stack `(T, ...)`, with the axes of a mesh over which it varies under `shard_map`."""
    return jax.eval_shape(lambda leaf: leaf[0], leaf)


def _is_in(var: Any, among: dict[Any, int]) -> bool:
    return isinstance(var, core.Var) and var in among


def _opened(traced: Any, arguments: Sequence[Any]) -> Any:
    """The same with what it closes over as its first arguments. A jaxpr of jax 0.12 holds its constants by itself."""
    count = len(traced.consts)

    def opened(*given: Any) -> Any:
        return core.jaxpr_as_fun(core.ClosedJaxpr(traced.jaxpr, list(given[:count])))(*given[count:])

    return jax.make_jaxpr(opened)(*traced.consts, *arguments)


def _call(traced: tuple[Any, list[int]], constants: Sequence[Any], arguments: list[Any]) -> list[Any]:
    opened, places = traced
    return list(core.jaxpr_as_fun(opened)(*(constants[index] for index in places), *arguments))
