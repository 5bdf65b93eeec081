"""Matrix states over a chunk of steps, in the chunkwise form of `loops/matrix_chunks.py`.

States of a group run with their values side by side. A chunk of the engine is a window here, which the form cuts into
shorter chunks. Where a result is not finite, the steps run one by one.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import promoted
from rnnscan._util.varying import vary_as
from rnnscan.engine.analysis.matrix_form import ONE
from rnnscan.engine.analysis.matrix_groups import Group, keys_of, queries_of
from rnnscan.engine.analysis.matrix_states import MatrixState
from rnnscan.engine.costs.chunk import near_divisor
from rnnscan.engine.loops.calls import differentiate_as, or_exact, recomputed
from rnnscan.engine.loops.exact import all_finite, guarded
from rnnscan.engine.loops.matrix_chunks import run_chunks
from rnnscan.engine.loops.matrix_parts import Factors, factors_at_step, finish, in_order
from rnnscan.engine.loops.step_by_step import CycleLoop
from rnnscan.engine.loops.time_loop import TimeLoop
from rnnscan.ir.leaves import split_list
from rnnscan.ir.program import Value, evaluate, read


# Of the pieces of the loop over the steps, whose derivative keeps the states before each piece: of 64 steps those of 4
# pieces, of 4 pieces within one, and of 4 steps. With 2 levels a RetNet takes 6.0 MiB of temporary memory, with 3 5.3.
_LEVELS = 3


def run_matrix(loop: CycleLoop, start: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run matrix states. See `Executor`. It returns what is read of the states, and not the states at each step."""
    group, read_in_loop, chunk = loop.recurrence.group, loop.cycle.reads, loop.chunk
    assert group is not None
    stacked, fixed = ([value for value in read_in_loop if chunk.varies(value) == varies] for varies in (True, False))
    states = _States(loop, group, stacked, fixed)
    # What stops a gradient stops it in the loop. The chunkwise form of values knows nothing of it.
    stops = any(equation.name == "stop_gradient" for equation in group.equations)
    run = or_exact(states.in_chunks, partial(states.by_steps, levels=1), states.by_steps)
    run = differentiate_as(states.by_steps, guarded(states.in_chunks, states.by_steps)) if stops else run
    results = run(*map(chunk.read, [*stacked, *fixed]), *start)
    reads, last = split_list(results, [len(group.results)])
    return reads, last


@dataclass(frozen=True)
class _States:
    """The states of a group over the steps of a chunk.

    Attributes:
        loop: the loop over the steps.
        group: the group.
        stacked: the values that it reads and that differ from step to step.
        fixed: the others that it reads.
    """

    loop: CycleLoop
    group: Group
    stacked: list[Value]
    fixed: list[Value]

    def by_steps(self, *arguments: Any, levels: int = _LEVELS) -> list[Any]:
        """The reads at each step and the last states, by a loop over the steps.

        Args:
            arguments: the values of `stacked` and `fixed`, and the states before the first step.
            levels: of pieces, before which a derivative keeps the states; 1: it keeps those before each step.
        """
        stacks, fixed, start = self._cut(arguments)
        cycle, steps, reverse = self.loop.cycle, self.loop.chunk.steps, self.loop.reverse

        def step(states: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            values = dict(zip([*cycle.leaves, *self.stacked, *self.fixed], [*states, *x, *fixed], strict=True))
            evaluate(self.group.equations, values)
            return [read(atom, values) for atom in cycle.new_leaves], [values[v] for v in self.group.results]

        # The derivative of a decay reads the old state, and that of a read the new one. One of them is stacked.
        has_decay = any(state.update.decay is not ONE for state in self.group.states)
        kept_once = recomputed(step) if has_decay else step

        def run(states: list[Any], xs: list[Any], length: int, levels: int) -> tuple[list[Any], list[Any], Any]:
            if levels == 1:
                return *lax.scan(kept_once, states, xs, length=length, reverse=reverse), ()

            def piece(states: list[Any], xs: list[Any], length: int) -> Any:
                return recomputed(partial(run, length=length, levels=levels - 1))(states, xs)

            size = near_divisor(length, round(length ** (1 - 1 / levels)))
            return TimeLoop(length, size, reverse, shorter_first=False).run(piece, states, xs)

        last, reads, _ = run(vary_as(start, arguments), stacks, steps, levels)
        return [*reads, *last]

    def _cut(self, arguments: Sequence[Any]) -> list[list[Any]]:
        return split_list(arguments, [len(self.stacked), len(self.fixed)])

    def in_chunks(self, *arguments: Any) -> tuple[list[Any], list[Any]]:
        """The same in chunkwise form, and whether each result is that of the loop."""
        stacks, fixed, start = self._cut(arguments)
        states, of_fixed = self.group.states, dict(zip(self.fixed, fixed, strict=True))

        def at_step(stacks: list[Any]) -> list[Factors]:
            values = {**of_fixed, **dict(zip(self.stacked, stacks, strict=True))}
            return [factors_at_step(state, values) for state in states]

        factors = jax.vmap(at_step, axis_size=self.loop.chunk.steps)(stacks)
        if self.loop.reverse:
            factors = jax.tree.map(lambda leaf: jnp.flip(leaf, 0), factors)
        initial = dict(zip(self.loop.cycle.leaves, start, strict=True))
        starts = [in_order(state, initial[state.leaf]) for state in states]
        reads, last = self._run(factors, starts, of_fixed)
        reads = [jnp.flip(stack, 0) for stack in reads] if self.loop.reverse else reads
        leaves = [*reads, *(last[leaf] for leaf in self.loop.cycle.leaves)]
        return leaves, [all_finite(leaves)] * len(leaves)

    def _run(
        self, factors: Sequence[Factors], starts: Sequence[Any], fixed: Mapping[Value, Any]
    ) -> tuple[list[Any], dict[Value, Any]]:
        """Run the states in chunkwise form.

        Args:
            factors: the factors of each state, stacked.
            starts: each state before the first step, `(..., K, V)`.
            fixed: the values that are the same at every step.

        Returns:
            What is read of the states, stacked, and the leaves of the carry after the last step.
        """
        dtype = promoted(*starts, *jax.tree.leaves([(each.queries, each.terms) for each in factors]))
        factors, starts = jax.tree.map(lambda leaf: leaf.astype(dtype), (factors, starts))
        queries, terms = _side_by_side(self.group.states, factors, starts)
        choices = self.loop.chunk.heuristics
        rounds, chunk = choices.linear == "associative", choices.state_chunk_within(self.loop.chunk.steps)
        reads, last = run_chunks([*queries.values()], factors[0].decay, terms, _joined(starts), chunk, rounds=rounds)
        reads_of, results, leaves, begin = dict(zip(queries, reads, strict=True)), [], {}, 0
        for state, own, start in zip(self.group.states, factors, starts, strict=True):
            end = begin + start.shape[-1]
            own_reads = [reads_of[key][..., begin:end] for key in queries_of(state)]
            finished, leaves[state.leaf] = finish(state, own, fixed, own_reads, last[..., begin:end], rounds=rounds)
            results += finished
            begin = end
        return results, leaves


def _side_by_side(
    states: Sequence[MatrixState], factors: Sequence[Factors], starts: Sequence[Any]
) -> tuple[dict[Hashable, Any], list[tuple[Any, Any]]]:
    """The different queries of states, by what identifies them, and the terms of the states as those of one."""
    queries = dict(zip(queries_of(states[0]), factors[0].queries, strict=True))
    keys = dict(zip(keys_of(states[0]), (u for u, _ in factors[0].terms), strict=True))
    written: dict[Hashable, list[Any]] = {key: [] for key in keys}
    for state, own, start in zip(states, factors, starts, strict=True):
        of_key = dict[Hashable, Any]()
        for key, (_, w) in zip(keys_of(state), own.terms, strict=True):
            of_key[key] = of_key[key] + w if key in of_key else w
        for key, leaves in written.items():
            # A state without this key adds nothing.
            leaves.append(of_key[key] if key in of_key else lax.full_like(start[None, ..., 0, :], 0))
    return queries, [(u, _joined(written[key])) for key, u in keys.items()]


def _joined(leaves: Sequence[Any]) -> Any:
    """Leaves side by side along the last axis. The others may have size 1."""
    if len(leaves) == 1:
        return leaves[0]
    batch = jnp.broadcast_shapes(*(leaf.shape[:-1] for leaf in leaves))
    return jnp.concatenate([jnp.broadcast_to(leaf, (*batch, leaf.shape[-1])) for leaf in leaves], -1)
