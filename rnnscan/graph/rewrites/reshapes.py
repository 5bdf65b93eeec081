"""remove_reshapes_for_dot(): matrix products of values as they are, without reshapes around them."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import jax
from jax import lax

from rnnscan.graph.core.bodies import with_bodies
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import type_of
from rnnscan.graph.rewrites.rewire import drop_left_over, rewired
from rnnscan.ir.program import Atom, Equation, Value
from rnnscan.ir.rewrite import replace_inputs


_SHAPE_ONLY = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim"})


def remove_reshapes_for_dot(graph: Graph) -> Graph:
    """Let `dot_general` read a value as it is, where only operations on its shape lie between.

    The axes that the product contracts and keeps are those of the value before the reshapes. Where that gives the
    result another shape, as for `x.reshape(N * T, D) @ w`, everything that reads the result must be a reshape too; the
    reshapes then start from the new result, and those that give its shape are gone. Chains of any length count.
    Labeled values stay. Bodies of loops, branches and functions with rules of their own are rewritten too.

    Args:
        graph: the graph.

    Returns:
        The graph without these reshapes. A graph that has none stays as it is.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def dense(x, w):
        ...     return jnp.tanh((x.reshape(6, 4) @ w).reshape(2, 3, 5))
        >>> graph = rs.graph.trace(dense, jnp.ones((2, 3, 4)), jnp.ones((4, 5)))
        >>> [node.operation for node in graph.nodes]
        ['reshape', 'dot_general', 'reshape', 'tanh']
        >>> [node.operation for node in rs.graph.remove_reshapes_for_dot(graph).nodes]
        ['dot_general', 'tanh']
    """
    graph = with_bodies(graph, remove_reshapes_for_dot)
    rewrite = _Rewrite(graph)
    for equation in graph.program.equations:
        rewrite.add(replace_inputs(equation, rewrite.same))
    return drop_left_over(rewired(graph, rewrite.equations, rewrite.same), graph, _SHAPE_ONLY)


# The axes of a value before its reshapes, and the axes after them that have the same elements.
Group: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


class _Rewrite:
    """Goes once through a graph's equations."""

    def __init__(self, graph: Graph) -> None:
        self.equations: list[Equation] = []
        self.same: dict[Atom, Atom] = {}
        self._labeled = graph.labels
        self._roots: dict[Value, Value] = {}
        self._moved: set[Value] = set()
        self._types: dict[Hashable, Any] = {}
        readers = Counter(value for equation in graph.program.equations for value in equation.reads)
        reshaped = Counter(
            value for equation in graph.program.equations if _is_shape_only(equation) for value in equation.reads
        )
        returned = set(graph.program.outputs)
        self._only_reshaped = {
            value for value, count in readers.items() if reshaped[value] == count and value not in returned
        }

    def add(self, equation: Equation) -> None:
        """Add an equation, or others in its place."""
        if _is_shape_only(equation):
            self._add_reshape(equation)
        elif equation.name == "dot_general" and equation.params["out_sharding"] is None:
            self.equations.append(self._dot(equation))
        else:
            self.equations.append(equation)

    def _add_reshape(self, equation: Equation) -> None:
        [operand], [output] = equation.inputs, equation.outputs
        if not isinstance(operand, Value) or output in self._labeled:
            self.equations.append(equation)
            return
        root = self._roots[output] = self._roots.get(operand, operand)
        if root not in self._moved:
            self.equations.append(equation)
        elif root.aval == output.aval:
            self.same[output] = root
        else:
            params = {"new_sizes": output.shape, "dimensions": None, "sharding": None}
            self.equations.append(Equation(lax.reshape_p, params, (root,), (output,), origin=equation.origin))

    def _dot(self, equation: Equation) -> Equation:
        """The product of values before their reshapes, where that is possible."""
        [output] = equation.outputs
        roots = [self._roots.get(atom, atom) if isinstance(atom, Value) else atom for atom in equation.inputs]
        for which in ((0, 1), (0,), (1,)):
            operands = tuple(roots[side] if side in which else atom for side, atom in enumerate(equation.inputs))
            if all(new is other for new, other in zip(operands, equation.inputs, strict=True)):
                continue
            dimensions = _dimensions(equation, operands)
            if dimensions is None:
                continue
            product = replace(equation, params={**equation.params, "dimension_numbers": dimensions}, inputs=operands)
            aval = self._type_of(product)
            if aval == output.aval:
                return product
            if output in self._only_reshaped and output not in self._labeled:
                moved = Value(aval)
                self._moved.add(moved)
                self._roots[output] = moved
                return replace(product, outputs=(moved,))
        return equation

    def _type_of(self, product: Equation) -> Any:
        """The type of a product; alike products are traced once."""
        avals = tuple(map(type_of, product.inputs))
        key = (product.operation, avals)
        if key not in self._types:
            [self._types[key]] = jax.make_jaxpr(product.evaluate)(*avals).out_avals
        return self._types[key]


def _is_shape_only(equation: Equation) -> bool:
    """Whether an operation keeps all elements, in order."""
    if equation.name not in _SHAPE_ONLY or len(equation.inputs) != 1:
        return False
    params, sizes = equation.params, (*equation.inputs[0].shape, *equation.outputs[0].shape)
    if any(not isinstance(size, int) or not size for size in sizes) or params.get("sharding") is not None:
        return False
    if params.get("dimensions") is not None and equation.name == "reshape":
        return False
    return prod(equation.inputs[0].shape) == prod(equation.outputs[0].shape)


def _dimensions(equation: Equation, operands: Sequence[Atom]) -> Any:
    """The `dimension_numbers` for operands before their reshapes; None if the axes do not fit."""
    contracted, batch = equation.params["dimension_numbers"]
    axes_of_sides: list[list[list[tuple[int, ...]]]] = []
    for side, (operand, reshaped) in enumerate(zip(operands, equation.inputs, strict=True)):
        axes = _axes(groups(operand.shape, reshaped.shape), {*contracted[side], *batch[side]})
        if axes is None:
            return None
        axes_of_sides.append([[axes[axis] for axis in group[side]] for group in (contracted, batch)])
    for left, right in zip(*axes_of_sides, strict=True):
        for group, other in zip(left, right, strict=True):
            if [operands[0].shape[axis] for axis in group] != [operands[1].shape[axis] for axis in other]:
                return None
    flat = [[tuple(axis for axes in group for axis in axes) for group in side] for side in axes_of_sides]
    return (flat[0][0], flat[1][0]), (flat[0][1], flat[1][1])


def _axes(groups: Sequence[Group], paired: set[int]) -> dict[int, tuple[int, ...]] | None:
    """The axes before the reshapes for each paired axis after them; None if one shares its axes."""
    axes = {}
    for before, after in groups:
        if paired.intersection(after):
            if len(after) != 1:
                return None
            axes[after[0]] = before
    return axes


def groups(before: Sequence[int], after: Sequence[int]) -> list[Group]:
    """The smallest groups of axes with the same elements, for a shape and its reshape."""
    groups: list[Group] = []
    i = j = 0
    while i < len(before) or j < len(after):
        left = before[i] if i < len(before) else 1
        right = after[j] if j < len(after) else 1
        if i < len(before) and j < len(after) and left == right:
            groups.append(((i,), (j,)))
            i, j = i + 1, j + 1
        elif i < len(before) and left == 1:
            groups.append(((i,), ()))
            i += 1
        elif j < len(after) and right == 1:
            groups.append(((), (j,)))
            j += 1
        else:
            first = (i, j)
            i, j = i + 1, j + 1
            while left != right:
                if left < right:
                    left, i = left * before[i], i + 1
                else:
                    right, j = right * after[j], j + 1
            groups.append((tuple(range(first[0], i)), tuple(range(first[1], j))))
    return groups
