"""Matrix states over a chunk of steps, in the chunkwise form of `loops/matrix_chunks.py`.

States of a group run with their values side by side. A chunk of the engine is a window here, which the form cuts into
shorter chunks. Where a result is not finite, the steps run one by one.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import isqrt
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import promoted
from rnnscan._util.varying import vary_as
from rnnscan.engine.analysis.cycle import Cycle
from rnnscan.engine.analysis.leaves import split_list
from rnnscan.engine.analysis.matrix_groups import Group, keys_of, queries_of
from rnnscan.engine.analysis.recurrence import Recurrence
from rnnscan.engine.costs.chunk import near_divisor
from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.loops.batched_values import Chunk
from rnnscan.engine.loops.calls import differentiate_as, or_exact, recomputed
from rnnscan.engine.loops.exact import all_finite, guarded
from rnnscan.engine.loops.matrix_chunks import run_chunks
from rnnscan.engine.loops.matrix_parts import Ordered, Parts, Stacks
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.ir.program import Value, evaluate, read


def run_matrix(
    recurrence: Recurrence, chunk: Chunk, start: Sequence[Any], *, reverse: bool, unroll: int | bool
) -> tuple[list[Any], list[Any]]:
    """Run matrix states. See `Executor`. It returns what is read of the states, and not the states at each step."""
    group, cycle = recurrence.group, recurrence.cycle
    assert group is not None
    stacked, fixed = ([value for value in cycle.reads if chunk.varies(value) == varies] for varies in (True, False))
    states = _States(group, cycle, stacked, fixed, chunk.steps, chunk.heuristics, reverse)
    # What stops a gradient stops it in the loop. The chunkwise form of values knows nothing of it.
    stops = any(equation.name == "stop_gradient" for equation in group.equations)
    run = or_exact(states.in_chunks, states.by_steps)
    run = differentiate_as(states.by_steps, guarded(states.in_chunks, states.by_steps)) if stops else run
    results = run(*map(chunk.read, [*stacked, *fixed]), *start)
    reads, last = split_list(results, [len(group.results)])
    return reads, last


@dataclass(frozen=True)
class _States:
    """The states of a group over the steps of a chunk.

    Attributes:
        group: the group.
        cycle: its loop.
        stacked: the values that it reads and that differ from step to step.
        fixed: the others that it reads.
        steps: the number of steps.
        heuristics: the choices of the platform.
        reverse: whether the steps run from the last to the first.
    """

    group: Group
    cycle: Cycle
    stacked: list[Value]
    fixed: list[Value]
    steps: int
    heuristics: Heuristics
    reverse: bool

    def by_steps(self, *arguments: Any) -> list[Any]:
        """The reads at each step and the last states, by a loop over the steps.

        Its derivative keeps the states before each piece of the loop.

        Args:
            arguments: the values of `stacked` and `fixed`, and the states before the first step.
        """
        stacks, fixed, start = self._cut(arguments)

        def step(states: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            values = dict(zip([*self.cycle.leaves, *self.stacked, *self.fixed], [*states, *x, *fixed], strict=True))
            evaluate(self.group.equations, values)
            return [read(atom, values) for atom in self.cycle.new_leaves], [values[v] for v in self.group.results]

        def piece(states: list[Any], xs: list[Any], length: int) -> tuple[list[Any], list[Any], Any]:
            scan = partial(lax.scan, step, length=length, reverse=self.reverse)
            return *recomputed(scan)(states, xs), ()

        size = near_divisor(self.steps, max(1, isqrt(self.steps)))
        loop = TimeLoop(self.steps, size, self.reverse, shorter_first=False)
        last, reads, _ = loop.run(piece, vary_as(start, arguments), stacks)
        return [*reads, *last]

    def _cut(self, arguments: Sequence[Any]) -> list[list[Any]]:
        return split_list(arguments, [len(self.stacked), len(self.fixed)])

    def in_chunks(self, *arguments: Any) -> tuple[list[Any], list[Any]]:
        """The same in chunkwise form, and whether each result is that of the loop."""
        stacks, fixed, start = self._cut(arguments)
        states = self.group.states
        every, of_fixed = [*map(Parts, states)], dict(zip(self.fixed, fixed, strict=True))

        def at_step(stacks: list[Any]) -> list[Stacks]:
            values = {**of_fixed, **dict(zip(self.stacked, stacks, strict=True))}
            return [parts.at_step(values) for parts in every]

        factors = jax.vmap(at_step, axis_size=self.steps)(stacks)
        matrices = [[matrix.make(of_fixed) for matrix in parts.matrices] for parts in every]
        if self.reverse:
            factors = jax.tree.map(lambda leaf: jnp.flip(leaf, 0), factors)
        initial = dict(zip(self.cycle.leaves, start, strict=True))
        starts = [initial[state.leaf] for state in states]
        results = self._run(every, factors, matrices, starts)
        reads = []
        for state, (totals, _) in zip(states, results, strict=True):
            totals = [jnp.flip(total, 0) for total in totals] if self.reverse else totals
            reads += [read.finish(total) for read, total in zip(state.reads, totals, strict=True)]
        final = {state.leaf: last for state, (_, last) in zip(states, results, strict=True)}
        leaves = [*reads, *(final[leaf] for leaf in self.cycle.leaves)]
        return leaves, [all_finite(leaves)] * len(leaves)

    def _run(
        self, every: Sequence[Parts], stacks: Sequence[Stacks], matrices: Sequence[Any], starts: Sequence[Any]
    ) -> list[tuple[list[Any], Any]]:
        """Run the states in chunkwise form.

        Args:
            every: the parts of each state.
            stacks: the factors of each state, stacked.
            matrices: the values of `Parts.matrices` of each state.
            starts: each state before the first step.

        Returns:
            Of each state the results of `Parts.finish`.
        """
        of_states = [parts.ordered(*pair) for parts, *pair in zip(every, stacks, starts, strict=True)]
        dtype = promoted(
            *(leaf for ordered in of_states for leaf in (ordered.start, *ordered.queries, *chain(*ordered.terms)))
        )
        of_states = [ordered.astype(dtype) for ordered in of_states]
        queries, joint = _side_by_side(self.group, of_states)
        rounds = self.heuristics.linear == "associative"
        reads, last = run_chunks(*joint, self.heuristics.state_chunk_within(self.steps), rounds=rounds)
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
