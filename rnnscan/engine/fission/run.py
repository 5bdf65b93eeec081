"""The fission engine: run only what is recurrent step by step.

A step is traced (trace.py, step.py) and split (split.py) into what is invariant, what can be done for a chunk of
steps at once, and loops. The forward pass (forward.py) keeps what the rule of memory says. The backward pass
(backward.py) goes through the chunks from the end: what was not kept is computed again for a chunk at once, a small
loop carries the cotangent of the carry, and the gradients of what all steps share are summed after it, by products
that contract over the steps.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._messages import is_count
from rnnscan._step_wrappers import Length, Step
from rnnscan.engine import lax as lax_engine
from rnnscan.engine.fission.execute.forward import Plan, run_and_save, run_forward
from rnnscan.engine.fission.execute.sharded_rows import ShardedRows, sharded_rows
from rnnscan.engine.fission.execute.tangents import is_zero, tangents_of_scan
from rnnscan.engine.fission.flat_step import FlatStep, flatten_step, one_step
from rnnscan.engine.segments import run_parts
from rnnscan.memory import Memory, kept_names
from rnnscan.naming import Names


def run(
    step: Step,
    carry: Any,
    xs: Any,
    *,
    length: Length,
    reverse: bool,
    unroll: int | bool,
    memory: Memory | None,
    names: Names,
) -> tuple[Any, Any]:
    """Run a step over time under the rule of memory.

    The arguments are those of the lax engine's `run`, which has the steps that this engine cannot take apart: those
    that do more than compute, and those that keep a named value within a vmap or a branch.
    """
    run_by_lax = partial(
        lax_engine.run, step, carry, xs, length=length, reverse=reverse, unroll=unroll, memory=memory, names=names
    )
    # Plain autodiff, or a symbolic dimension of jax.export, which chunks cannot divide.
    if memory is None or not is_count(length):
        return run_by_lax()
    x = jax.tree.map(one_step, xs)
    flat, constants = flatten_step(step, carry, x, kept=kept_names(memory, names), names=names)
    if why_not(flat, memory):
        return run_by_lax()
    if flat.unchanged:
        return _run_with_unchanged(step, carry, xs, flat.unchanged, run_by_lax.keywords)

    rows, spread, copies = sharded_rows(jax.tree.leaves((carry, x)), constants), {}, []
    if rows is not None:
        constants = [rows.on_mesh(constant) for constant in constants]
    if rows is not None and memory.segment is not None:
        # Segments run in a loop, and each has gradients of the constants: their total is taken after all segments.
        spread = {index: rows for index, constant in enumerate(constants) if _is_summed(constant, rows)}
        copies = [rows.spread(constants[index]) for index in spread]

    def run_steps(carry: Any, xs: Any, length: int) -> tuple[Any, Any]:
        plan = Plan(flat, length, reverse=reverse, unroll=unroll, chosen_chunk=memory.chunk)
        final, ys = _differentiable(plan, spread)(constants, copies, jax.tree.leaves(carry), jax.tree.leaves(xs))
        return jax.tree.unflatten(jax.tree.structure(carry), final), jax.tree.unflatten(flat.y_structure, ys)

    return run_parts(run_steps, carry, xs, parts=memory.sub_scans(length), reverse=reverse)


def why_not(flat: FlatStep, memory: Memory) -> str:
    """Why a step goes by the lax engine, in words; nothing where it does not."""
    if flat.has_effects:
        return "the cell does more than compute"
    if memory.offload:
        return "named values are kept in host memory"
    return "" if flat.keeps_all else "a name stands within a vmap or a branch, out of which it cannot be taken"


def _run_with_unchanged(
    step: Step, carry: Any, xs: Any, unchanged: list[int], options: dict[str, Any]
) -> tuple[Any, Any]:
    """Run a step that closes over what of its carry stays as it is, so that it is not kept at each step."""
    structure = jax.tree.structure(carry)
    leaves = dict(enumerate(jax.tree.leaves(carry)))
    constant = {index: leaves.pop(index) for index in unchanged}

    def whole(changing: dict[int, Any]) -> Any:
        return jax.tree.unflatten(structure, [leaf for _, leaf in sorted({**changing, **constant}.items())])

    def smaller_step(changing: dict[int, Any], x: Any) -> tuple[dict[int, Any], Any]:
        new_carry, y = step(whole(changing), x)
        return {index: jax.tree.leaves(new_carry)[index] for index in changing}, y

    final, ys = run(smaller_step, leaves, xs, **options)
    return whole(final), ys


def _is_summed(constant: Any, rows: ShardedRows) -> bool:
    """Whether the gradient of a constant is a sum over rows."""
    return jnp.issubdtype(constant.dtype, jnp.inexact) and not rows.lie_in(constant)


def _differentiable(plan: Plan, spread: Mapping[int, ShardedRows]) -> Any:
    """`(constants, copies, carry, xs) -> (carry, ys)`, all lists of leaves, with the derivatives of this engine.

    Reverse mode transposes the linear map of the tangents, which runs the engine's backward pass. Forward mode
    evaluates that map by a plain scan. A constant that was spread over parts of the rows has its derivative through its
    copies, which are not read.
    """

    @jax.custom_jvp
    def scan(constants: Any, copies: Any, carry: Any, xs: Any) -> tuple[list[Any], list[Any]]:
        return run_forward(plan, constants, carry, xs)

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        constants, _, *others = primals
        *results, saved = run_and_save(plan, constants, *others)
        of_constants, of_copies, *of_others = tangents
        own = list({**dict(enumerate(of_constants)), **dict(zip(spread, of_copies, strict=True))}.values())
        leaves = jax.tree.leaves([own, of_others], is_leaf=is_zero)
        return tuple(results), tangents_of_scan(plan, saved, results, leaves, spread)

    scan.defjvp(differentiate, symbolic_zeros=True)
    return scan
