"""A function of flat operands with its derivative, as the parameter of one operation in a jaxpr."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from rnnscan._util.zeros import zeros_of_value
from rnnscan.engine.analysis.leaves import places, replace_at, split_list
from rnnscan.engine.analysis.probe import has_tangent, mapped_results


# (whether each leaf of the arguments has a tangent) -> whether each leaf of the results has one
Moving: TypeAlias = Callable[[list[bool]], Sequence[bool]]
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
        batch_axis: position of a result -> the axis that `jax.vmap` puts its batch on.
        batched: the call under `jax.vmap`.
        together: the derivative for forward mode, and which results have a tangent.
        in_parts: `run`, in parts that partial evaluation takes apart; None: it has none.
        saving: the call as one that saves residuals, and one that reads them.
        saving_call: for the first of these how the second is called (`analysis/saving_calls.py`).
        traces: types of the operands -> the jaxpr of `run`.
    """

    run: Flat
    rule: FlatRule
    reference: Flat
    batch_axis: Callable[[int], int]
    batched: Callable[[Any, Sequence[Any], Sequence[Any]], Any] | None = None
    together: tuple[FlatRule, Moving] | None = None
    in_parts: Flat | None = None
    saving: Any = None
    saving_call: Any = None
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
        out_axes = [self.batch_axis(index) for index in range(len(is_mapped))]

        def aligned(leaves: Sequence[Any]) -> list[Any]:
            rows = zip(leaves, out_axes, is_mapped, strict=True)
            return [
                leaf if maps or leaf is None else lax.index_in_dim(leaf, 0, at, keepdims=False)
                for leaf, at, maps in rows
            ]

        def over_rows(run: Flat, operands: Sequence[Any]) -> list[Any]:
            return aligned(vmap(lambda *leaves: run(leaves), in_axes=in_axes, out_axes=out_axes)(*operands))

        def rule_over_rows(
            rule: FlatRule, primals: Sequence[Any], tangents: Sequence[Any]
        ) -> tuple[list[Any], list[Any]]:
            moving = [None if is_zero(tangent) else tangent for tangent in tangents]

            def row(primals: Sequence[Any], moving: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                pairs = zip(primals, moving, strict=True)
                results, result_tangents = rule(primals, [zero(leaf) if dot is None else dot for leaf, dot in pairs])
                return results, [None if is_zero(leaf) else leaf for leaf in result_tangents]

            moving_axes = [None if leaf is None else at for leaf, at in zip(moving, axes, strict=True)]
            over_both = vmap(row, in_axes=([*axes], moving_axes), out_axes=(out_axes, out_axes))
            results, result_tangents = map(aligned, over_both([*primals], moving))
            return results, [
                zero(leaf) if dot is None else dot for leaf, dot in zip(results, result_tangents, strict=True)
            ]

        # The axis of an outer batch is added to this one: each axis stands where its caller expects it.
        whole = replace(
            self,
            run=partial(over_rows, self.run),
            rule=partial(rule_over_rows, self.rule),
            reference=partial(over_rows, self.run),
            batched=None,
            together=self.together and (partial(rule_over_rows, self.together[0]), self.together[1]),
            in_parts=self.in_parts and partial(over_rows, self.in_parts),
            saving=None,
            saving_call=None,
            traces={},
        )
        return whole, [at if maps else None for at, maps in zip(out_axes, is_mapped, strict=True)]

    def with_tangents(self, moves: list[bool]) -> "FlatFunction":
        """`(*primals, *tangents) -> (*results, *tangents)`, together. In parts it is the derivative of reverse mode.

        Args:
            moves: for each operand whether it has a tangent.
        """
        assert self.together is not None
        rule, moving = self.together
        results_move = moving(moves)
        with_tangents, results_with_tangents = map(places, (moves, results_move))

        def flat(rule: FlatRule, operands: Sequence[Any]) -> list[Any]:
            primals, directions = split_list(operands, [len(moves)])
            results, tangents = rule(primals, replace_at([*map(zero, primals)], with_tangents, directions))
            chosen = [tangents[index] for index in results_with_tangents]
            return [*results, *(ad.instantiate_zeros(ad.Zero(leaf.aval)) if is_zero(leaf) else leaf for leaf in chosen)]

        def moving_too(flags: list[bool]) -> list[bool]:
            primals_move, tangents_move = split_list(flags, [len(moves)])
            pairs = zip(with_tangents, tangents_move, strict=True)
            either = replace_at(primals_move, with_tangents, [primals_move[index] or moves for index, moves in pairs])
            of_tangents = moving(either)
            return [*moving(primals_move), *(of_tangents[index] for index in results_with_tangents)]

        count = len(results_move)
        jointly, in_parts = partial(flat, rule), partial(flat, self.rule)
        return FlatFunction(
            run=jointly,
            rule=partial(_flat_jvp, in_parts),
            reference=partial(flat, partial(_flat_jvp, self.reference)),
            batch_axis=lambda index: self.batch_axis(index if index < count else results_with_tangents[index - count]),
            together=(partial(_flat_jvp, jointly), moving_too),
            in_parts=in_parts,
        )

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

        def batched(axis: Any, axes: Sequence[Any], leaves: Sequence[Any]) -> Any:
            assert self.batched is not None
            mapped = self.batched(axis, replace_at([None] * len(types), operands, axes), with_zeros(leaves))
            return None if mapped is None else tuple(map(chosen, mapped))

        def moving(flags: list[bool]) -> list[bool]:
            assert self.together is not None
            return chosen(self.together[1](replace_at([False] * len(types), operands, flags)))

        return FlatFunction(
            run=partial(run, self.run),
            rule=partial(rule, self.rule),
            reference=partial(run, self.reference),
            batch_axis=lambda index: self.batch_axis(results[index]),
            batched=self.batched and batched,
            together=self.together and (partial(rule, self.together[0]), moving),
            in_parts=self.in_parts and partial(run, self.in_parts),
        )


def _flat_jvp(run: Flat, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    return jvp(lambda *operands: run(operands), tuple(primals), tuple(tangents))


def zero(leaf: Any) -> SymbolicZero:
    """A symbolic zero as the tangent of a value."""
    return SymbolicZero(jax.typeof(leaf).to_tangent_aval())
