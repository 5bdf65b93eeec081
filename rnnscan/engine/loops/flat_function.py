"""A function of flat operands with its derivative, as the parameter of one operation in a jaxpr."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero

from rnnscan._util.zeros import zeros_of_value
from rnnscan.engine.analysis.leaves import replace_at
from rnnscan.engine.analysis.probe import has_tangent, mapped_results


# operands -> results
Flat: TypeAlias = Callable[[Sequence[Any]], list[Any]]
# (primals, tangents or symbolic zeros) -> (results, tangents or symbolic zeros)
FlatRule: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is one of JAX's symbolic zeros."""
    return isinstance(tangent, SymbolicZero)


def jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """`jax.jvp`, with symbolic zeros among the tangents.

    Args:
        function: a function of pytrees.
        primals: its arguments.
        tangents: a pytree like them.

    Returns:
        The results, and their tangents.
    """
    leaves, structure = jax.tree.flatten(primals)
    every = enumerate(jax.tree.leaves(tangents, is_leaf=is_zero))
    moving = {index: tangent for index, tangent in every if not is_zero(tangent)}

    flags: list[bool] = []

    def run(*moving_leaves: Any) -> Any:
        results = function(*jax.tree.unflatten(structure, replace_at(leaves, [*moving], moving_leaves)))
        flags.extend(map(has_tangent, jax.tree.leaves(results)))
        return results

    results, result_tangents = jax.jvp(run, [leaves[index] for index in moving], [*moving.values()])
    result_leaves, result_structure = jax.tree.flatten(results)
    rows = zip(flags, result_leaves, jax.tree.leaves(result_tangents), strict=True)
    return results, jax.tree.unflatten(result_structure, [dot if moves else zero(leaf) for moves, leaf, dot in rows])


@dataclass(frozen=True, eq=False)
class FlatFunction:
    """A function of flat operands with its derivative.

    Attributes:
        run: the function.
        rule: its derivative.
        reference: the function that tells which results `jax.vmap` maps.
        traces: types of the operands -> the jaxpr of `run`.
    """

    run: Flat
    rule: FlatRule
    reference: Flat
    traces: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "rnnscan"  # A jaxpr is printed with its parameters.

    def traced(self, types: Iterable[Any]) -> Any:
        """The jaxpr of the function, for operands of these types."""
        key = tuple(types)
        if key not in self.traces:
            self.traces[key] = jax.make_jaxpr(lambda *operands: self.run(operands))(*key)
        return self.traces[key]

    def mapped(
        self, axis: Any, axes: Sequence[int | None], operands: Sequence[Any]
    ) -> tuple["FlatFunction", list[Any]]:
        """The function under `jax.vmap`, and the axis of each of its results.

        A result that no mapped operand reaches is the same in all rows. It is read from the first.
        """
        vmap = partial(jax.vmap, axis_size=axis.size, axis_name=axis.name, spmd_axis_name=axis.spmd_name)
        in_axes = tuple(axes)
        types = [jax.typeof(operand) for operand in operands]
        is_mapped = mapped_results(partial(vmap, in_axes=in_axes), lambda *leaves: self.reference(leaves), types)

        def aligned(leaves: Sequence[Any]) -> list[Any]:
            rows = zip(leaves, is_mapped, strict=True)
            return [leaf if maps or leaf is None else lax.index_in_dim(leaf, 0, keepdims=False) for leaf, maps in rows]

        def over_rows(run: Flat, operands: Sequence[Any]) -> list[Any]:
            return aligned(vmap(lambda *leaves: run(leaves), in_axes=in_axes)(*operands))

        def rule_over_rows(
            rule: FlatRule, primals: Sequence[Any], tangents: Sequence[Any]
        ) -> tuple[list[Any], list[Any]]:
            moving = [None if is_zero(tangent) else tangent for tangent in tangents]

            def row(primals: Sequence[Any], moving: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                pairs = zip(primals, moving, strict=True)
                results, result_tangents = rule(primals, [zero(leaf) if dot is None else dot for leaf, dot in pairs])
                return results, [None if is_zero(leaf) else leaf for leaf in result_tangents]

            moving_axes = [None if leaf is None else at for leaf, at in zip(moving, axes, strict=True)]
            over_both = vmap(row, in_axes=([*axes], moving_axes))
            results, result_tangents = map(aligned, over_both([*primals], moving))
            return results, [
                zero(leaf) if dot is None else dot for leaf, dot in zip(results, result_tangents, strict=True)
            ]

        whole = replace(
            self,
            run=partial(over_rows, self.run),
            rule=partial(rule_over_rows, self.rule),
            reference=partial(over_rows, self.run),
            traces={},
        )
        return whole, [0 if maps else None for maps in is_mapped]

    def only(self, results: Sequence[int], operands: Sequence[int], types: Sequence[Any]) -> "FlatFunction":
        """The function with some of its results, of the operands that these depend on.

        Args:
            results: the positions of the results.
            operands: the positions of the operands.
            types: the types of all operands.
        """

        def with_zeros(leaves: Sequence[Any]) -> list[Any]:
            zeros = [None if index in operands else zeros_of_value(aval) for index, aval in enumerate(types)]
            return replace_at(zeros, operands, leaves)

        def chosen(leaves: Sequence[Any]) -> list[Any]:
            return [leaves[index] for index in results]

        def run(run: Flat, leaves: Sequence[Any]) -> list[Any]:
            return chosen(run(with_zeros(leaves)))

        def rule(rule: FlatRule, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            primals = with_zeros(primals)
            all_results, result_tangents = rule(primals, replace_at([*map(zero, primals)], operands, tangents))
            return chosen(all_results), chosen(result_tangents)

        return FlatFunction(
            run=partial(run, self.run),
            rule=partial(rule, self.rule),
            reference=partial(run, self.reference),
        )


def zero(leaf: Any) -> SymbolicZero:
    """A symbolic zero as the tangent of a value."""
    return SymbolicZero(jax.typeof(leaf).to_tangent_aval())
