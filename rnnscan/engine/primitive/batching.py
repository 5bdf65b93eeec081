"""Scans under `jax.vmap`: the step of all rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from rnnscan.engine.primitive.joint import joint
from rnnscan.engine.primitive.scan import Saving, Scan, Tangents, bind, joint_scan_p, scan_p, y_size
from rnnscan.ir.leaves import places
from rnnscan.ir.rules import batch_by, mapped_results, over_axis


@dataclass(frozen=True)
class Rows:
    """A step on all rows.

    Attributes:
        step: the step. Mapped constants have the rows as their first axis, other leaves as the one that was asked for.
        operands: whether each operand is mapped.
        results: whether each result of the step is.
    """

    step: core.ClosedJaxpr
    operands: list[bool]
    results: list[bool]


def on_rows(
    step: core.ClosedJaxpr,
    axis: Any,
    is_mapped: Sequence[bool],
    feedback: Sequence[tuple[int, int]],
    *,
    all_results: bool = False,
    constants: int = 0,
    place: int = 0,
) -> Rows:
    """A step under `jax.vmap`. As in `lax.scan`, leaves that nothing mapped reaches have no rows.

    Args:
        step: the step of one row.
        axis: the batch axis, as JAX gives it to a rule of `fancy_primitive_batchers`.
        is_mapped: for each operand whether it is mapped.
        feedback: the positions of results that become operands of the next step, with those of these.
        all_results: whether all results have rows.
        constants: the number of operands, the first ones, that have the rows as their first axis in any case.
        place: the axis that they are of other operands and of results.
    """
    run, vmap = core.jaxpr_as_fun(step), partial(over_axis, axis)
    flags, is_settled = list(is_mapped), False
    places_of = [0 if index < constants else place for index in range(len(flags))]
    while not is_settled:
        in_axes = tuple(at if has_rows else None for at, has_rows in zip(places_of, flags, strict=True))
        types = [_with_rows(aval, axis, at) for aval, at in zip(step.in_avals, in_axes, strict=True)]
        results = [all_results or maps for maps in mapped_results(partial(vmap, axes=in_axes), run, types)]
        for result, operand in feedback:
            results[result] |= flags[operand]
        more = [operand for result, operand in feedback if results[result] and not flags[operand]]
        for operand in more:
            flags[operand] = True
        is_settled = not more
    out_axes = [place if has_rows else None for has_rows in results]
    return Rows(jax.make_jaxpr(vmap(run, axes=in_axes, out_axes=out_axes))(*types), flags, results)


def _scan_on_rows(
    step: core.ClosedJaxpr, scan: Scan, axis: Any, is_mapped: Sequence[bool]
) -> tuple[Rows, core.ClosedJaxpr | None, int]:
    """The step, and the condition, of all rows, and the axis of these in carry, x and y.

    Rows that stop by themselves have their own carry and inputs. Others come after those of a condition that does not
    tell them apart, as `jax.jacfwd` maps tangents alone.
    """
    feedback = [(index, scan.constants + index) for index in range(scan.carry)]
    in_order = partial(on_rows, axis=axis, constants=scan.constants)
    if scan.condition is None:
        return in_order(step, is_mapped=is_mapped, feedback=feedback), None, 0
    read, place = scan.constants + scan.carry, len(scan.condition.out_avals[0].shape)
    rows = in_order(step, is_mapped=is_mapped, feedback=feedback, place=place)
    condition = in_order(scan.condition, is_mapped=rows.operands[:read], feedback=[], place=place)
    if not condition.results[0]:
        return rows, condition.step, place
    flags = [*rows.operands[: scan.constants], *[True] * (len(rows.operands) - scan.constants)]
    rows = in_order(step, is_mapped=flags, feedback=feedback, all_results=True)
    condition = in_order(scan.condition, is_mapped=rows.operands[:read], feedback=[], all_results=True)
    return rows, condition.step, 0


def _with_rows(aval: Any, axis: Any, place: int | None) -> Any:
    return aval if place is None else core.unmapped_aval(axis.size, place, aval, axis.explicit_mesh_axis)


def moved(leaf: Any, row_axis: int | None, place: int, size: Any, *, is_mapped: bool) -> Any:
    """An operand with its rows in a place, repeated if it has none and is to have some."""
    if row_axis is not None:
        return jnp.moveaxis(leaf, row_axis, place)
    if not is_mapped:
        return leaf
    return jnp.broadcast_to(jnp.expand_dims(leaf, place), (*leaf.shape[:place], size, *leaf.shape[place:]))


def _batch(
    axis: Any,
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    step: core.ClosedJaxpr,
    scan: Scan,
    saving: Saving | None = None,
    tangents: Tangents | None = None,
) -> tuple[list[Any], list[int | None]]:
    size = len(step.in_avals)
    rows, condition, at_rows = _scan_on_rows(step, scan, axis, [place is not None for place in axes[:size]])
    leaves = range(size + len(scan.copied))
    have_rows = [*rows.operands, *(place is not None for place in axes[size : len(leaves)])]
    # Of each operand the leaf that it is, or the tangent of.
    sources = [*leaves, *(places(tangents.operands) if tangents else ())]
    if any(place is not None and not have_rows[leaf] for place, leaf in zip(axes, sources, strict=True)):
        assert tangents is not None
        both = joint(step, scan, tangents)
        both_axes = [axes[of if place is None else place] for place, of in both.operands]
        results, out_axes = _batch(axis, both.chosen(operands), both_axes, step=both.step, scan=both.scan)
        return [results[place] for place in both.results], [out_axes[place] for place in both.results]
    # A copy for each part of the rows of a mesh is not one for each part of these rows.
    stay = [*[True] * size, *(copy.rows is None for _, copy in scan.copied)]
    first_x = scan.constants + scan.carry
    targets = [0] * scan.constants + [at_rows] * scan.carry + [at_rows + 1] * (size - first_x) + [0] * len(scan.copied)
    operands = [
        moved(leaf, at, targets[source], axis.size, is_mapped=have_rows[source])
        for leaf, at, source in zip(operands, axes, sources, strict=True)
        if stay[source]
    ]
    copied = tuple(pair for pair, stays in zip(scan.copied, stay[size:], strict=True) if stays)
    # What is saved was planned for the rows before.
    options = scan.options if saving else scan.options.on_rows(axis.size)
    scan = replace(scan, copied=copied, condition=condition, options=options)
    if tangents is not None:
        flags = (is_active for is_active, stays in zip(tangents.operands, stay, strict=True) if stays)
        tangents = replace(tangents, operands=tuple(flags))
    results = bind(operands, rows.step, scan, saving and replace(saving, inner=None), tangents)
    places_of_rows = [at_rows] * scan.carry + [at_rows + 1] * y_size(step, scan)
    out_axes = [place if is_mapped else None for place, is_mapped in zip(places_of_rows, rows.results, strict=False)]
    after = places(tangents.results) if tangents else ()
    starts = saving.starts if saving else ()
    of_starts = [at_rows + 1 if rows.results[i] else None for i in starts]
    return results, [*out_axes, *(out_axes[i] for i in after), *of_starts]


batch_by(scan_p, _batch)
batch_by(joint_scan_p, _batch)
