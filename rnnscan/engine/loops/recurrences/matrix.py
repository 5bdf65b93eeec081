"""Matrix states over a chunk of steps, in the chunkwise form of `loops/matrix_chunks.py`.

States of a group run with their values side by side. A chunk of the engine is a window here, which the form cuts into
shorter chunks.
"""

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import promoted
from rnnscan.engine.analysis.matrix_groups import Group, keys_of, queries_of
from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.matrix_chunks import run_chunks
from rnnscan.engine.loops.matrix_parts import Ordered, Parts, Stacks
from rnnscan.ir.program import Value


def run_matrix(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run matrix states. See `Executor`. It returns what is read of the states, and not the states at each step."""
    group, leaves = recurrence.group, recurrence.cycle.leaves
    assert group is not None
    every = [Parts.of(state) for state in group.states]

    def at_step(values: dict[Value, Any]) -> list[Stacks]:
        return [parts.at_step(values) for parts in every]

    stacks = chunk.at_every_step(at_step, recurrence.cycle.reads)
    fixed = {value: chunk.read(value) for parts in every for matrix in parts.matrices for value in matrix.reads}
    matrices = [[matrix.make(fixed) for matrix in parts.matrices] for parts in every]
    if reverse:
        stacks = jax.tree.map(lambda leaf: jnp.flip(leaf, 0), stacks)
    initial = dict(zip(leaves, start, strict=True))
    results = _run(group, every, stacks, matrices, [initial[state.leaf] for state in group.states], chunk)
    reads = []
    for state, (totals, _) in zip(group.states, results, strict=True):
        totals = [jnp.flip(total, 0) for total in totals] if reverse else totals
        reads += [read.finish(total) for read, total in zip(state.reads, totals, strict=True)]
    final = {state.leaf: last for state, (_, last) in zip(group.states, results, strict=True)}
    return reads, [final[leaf] for leaf in leaves]


def _run(
    group: Group,
    every: Sequence[Parts],
    stacks: Sequence[Stacks],
    matrices: Sequence[Sequence[Any]],
    starts: Sequence[Any],
    chunk: Chunk,
) -> list[tuple[list[Any], Any]]:
    """Run the states of a group over the steps.

    Args:
        group: the group.
        every: the parts of each state.
        stacks: the factors of each state, stacked.
        matrices: the values of `Parts.matrices` of each state.
        starts: each state before the first step.
        chunk: the steps, and the choices of the platform.

    Returns:
        Of each state the results of `Parts.finish`.
    """
    of_states = [parts.ordered(*pair) for parts, *pair in zip(every, stacks, starts, strict=True)]
    dtype = promoted(
        *(leaf for ordered in of_states for leaf in (ordered.start, *ordered.queries, *chain(*ordered.terms)))
    )
    of_states = [ordered.astype(dtype) for ordered in of_states]
    queries, joint = _side_by_side(group, of_states)
    rounds = chunk.heuristics.linear == "associative"
    reads, last = run_chunks(*joint, chunk.heuristics.state_chunk_within(chunk.steps), rounds=rounds)
    results, begin = [], 0
    for number, parts in enumerate(every):
        end = begin + of_states[number].start.shape[-1]
        of_state = [reads[queries.index(key)][..., begin:end] for key in queries_of(parts.state)]
        state = of_states[number], stacks[number], matrices[number]
        results.append(parts.finish(*state, of_state, last[..., begin:end], rounds=rounds))
        begin = end
    return results


def _side_by_side(group: Group, of_states: Sequence[Ordered]) -> tuple[list[Hashable], Ordered]:
    """The states as one, with different queries and keys, and the keys of the queries' factors."""
    first, starts = of_states[0], [ordered.start for ordered in of_states]
    queries = dict(zip(queries_of(group.states[0]), first.queries, strict=True))
    keys = {key: u for key, (u, _) in zip(keys_of(group.states[0]), first.terms, strict=True)}
    written: dict[Hashable, list[Any]] = {key: [None] * len(starts) for key in keys}
    for number, (state, ordered) in enumerate(zip(group.states, of_states, strict=True)):
        for key, (_, w) in zip(keys_of(state), ordered.terms, strict=True):
            so_far = written[key][number]
            written[key][number] = w if so_far is None else so_far + w
    terms = []
    for key, u in keys.items():
        pairs = zip(starts, written[key], strict=True)
        # A state without this key adds nothing.
        terms.append((u, _joined([lax.full_like(start[None, ..., 0, :], 0) if w is None else w for start, w in pairs])))
    return [*queries], Ordered([*queries.values()], first.decay, terms, _joined(starts))


def _joined(leaves: Sequence[Any]) -> Any:
    """Leaves side by side along the last axis. The others may have size 1."""
    if len(leaves) == 1:
        return leaves[0]
    batch = jnp.broadcast_shapes(*(leaf.shape[:-1] for leaf in leaves))
    return jnp.concatenate([jnp.broadcast_to(leaf, (*batch, leaf.shape[-1])) for leaf in leaves], -1)
