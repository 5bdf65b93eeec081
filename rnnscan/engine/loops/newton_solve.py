"""Solve a loop over all steps of a chunk by Newton's method, or run it step by step where that does not converge.

The unknowns are the leaves after each step, `h_t = f_t(h_{t-1})`. An iteration linearizes the system at the present
states and solves it for a correction d, which is a linear recurrence:

    d_t = J_t d_{t-1} + f_t(h_{t-1}) - h_t,    h_t <- h_t + d_t.

A chunk has converged when no correction is larger than rounding, relative to the largest state so far at its element.
The residual `f_t(h_{t-1}) - h_t` would not do: in a chaotic loop a residual of rounding belongs to a state far away,
and the correction says how far.

Source: Lim et al. 2024, "Parallelizing non-linear sequential models over the sequence length"; Danieli et al. 2025,
"ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large Language Models".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan._util.varying import vary_as
from rnnscan.engine.loops.affine import affine_scan, product, times
from rnnscan.engine.loops.calls import differentiate_as
from rnnscan.engine.loops.exact import all_finite, exact_unless
from rnnscan.engine.loops.indexing import shifted
from rnnscan.engine.loops.step_by_step import CycleLoop
from rnnscan.engine.loops.trust_region import gains
from rnnscan.newton import Newton


# The leaves of a loop, which have one shape: k numbers at each element.
Vector: TypeAlias = list[Any]


def run_newton(loop: CycleLoop, start: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run a recurrence that is solved for all steps: exactly where it is linear. See `Executor`.

    Args:
        loop: the loop, which runs step by step where Newton's method does not converge.
        start: its leaves before the first step to run.
    """
    newton = loop.recurrence.newton if loop.recurrence.newton_solves else None
    solver = _Solver(loop, newton)
    run = differentiate_as(solver.one_by_one, solver.solve)
    after, *counts = run([*start], loop.read_values())
    if newton is not None:
        loop.chunk.counts.append(tuple(counts))
    return loop.before_and_last(after, start)


@dataclass(frozen=True)
class _Solver:
    """Runs a loop over a chunk of steps.

    Attributes:
        loop: the loop, which runs where the solution is not right.
        newton: the options; None if the loop is linear, so that one iteration solves it.
    """

    loop: CycleLoop
    newton: Newton | None

    def one_by_one(self, start: Vector, read_values: list[Any]) -> tuple[Vector, Any, Any]:
        """What `solve` returns, by the loop itself."""
        return self.loop(*start, *read_values), jnp.int32(0), jnp.bool_(True)

    def solve(self, start: Vector, read_values: list[Any]) -> tuple[Vector, Any, Any]:
        """The leaves after each step.

        Args:
            start: the leaves before the first step to run.
            read_values: the values that the loop reads.

        Returns:
            The leaves after each step, the number of iterations, and whether the steps ran one by one.
        """
        if self.newton is None:
            after, iterations, converged = self._solve_linear(start, read_values)
        else:
            after, iterations, converged = self._iterate(self.newton, start, read_values)
        results = exact_unless(after, [converged] * len(after), self.loop, [*start, *read_values])
        return results, iterations, ~converged

    def _solve_linear(self, start: Vector, read_values: list[Any]) -> tuple[Vector, Any, Any]:
        """The solution, the number of iterations, and whether all of it is finite.

        It is computed in at least float32, and rounded once. The product of many steps may overflow where no step does,
        and infinity times zero is NaN.
        """
        terms, jacobian = self._at_all_steps(self.loop.cycle.with_jacobian, self._zeros(start), read_values)
        states, _ = affine_scan(_wide(jacobian), _stacked(terms, 1), _stacked(start), reverse=self.loop.reverse)
        after = _unstacked(states, start)
        return after, jnp.int32(1), all_finite(after)

    def _iterate(self, newton: Newton, start: Vector, read_values: list[Any]) -> tuple[Vector, Any, Any]:
        """The solution, the number of iterations, and whether the last correction was within the tolerance."""
        tolerance = _tolerance(newton, start, dense=bool(self.loop.cycle.diagonal))

        def unfinished(state: Any) -> Any:
            _, count, worst, finite = state
            # From a step that gives NaN or infinity nothing comes back.
            return (count < newton.max_iterations) & (worst > 1) & finite

        def iterate(state: Any) -> Any:
            after, count, worst, _ = state
            moved, largest, finite = self._correct(after, start, read_values, tolerance, newton.damping)
            return moved, count + 1, largest.astype(worst.dtype), finite

        guess = self._guess(start, read_values)
        beyond = jnp.asarray(2, at_least_float32(start[0].dtype))
        begin = vary_as((guess, jnp.int32(0), beyond, jnp.bool_(True)), [*start, *read_values])
        after, count, worst, finite = lax.while_loop(unfinished, iterate, begin)
        return after, count, (worst <= 1) & finite

    def _guess(self, start: Vector, read_values: list[Any]) -> Vector:
        """A step from zeros, at every step. It saves one iteration compared to zeros, and two compared to the start."""
        after = self._at_all_steps(self.loop.cycle.step, self._zeros(start), read_values)
        pairs = zip(after, start, strict=True)
        return [jnp.where(jnp.isfinite(leaf), leaf, start_leaf[None]) for leaf, start_leaf in pairs]

    def _correct(
        self, after: Vector, start: Vector, read_values: list[Any], tolerance: float, damping: float
    ) -> tuple[Vector, Any, Any]:
        """One iteration: the new states, the largest correction in units of the tolerance, and whether all is finite.

        A correction of NaN would not do for the last: with jax 0.10.2 on a CPU, `jnp.max` passes over NaN.
        """
        before = [shifted(leaf, first, to_start=self.loop.reverse) for leaf, first in zip(after, start, strict=True)]
        new, jacobian = self._at_all_steps(self.loop.cycle.with_jacobian, before, read_values)
        states, new_states, matrix, free = _stacked(after, 1), _stacked(new, 1), _wide(jacobian), jnp.bool_(True)
        residual = terms = new_states - states
        sizes = jnp.maximum(jnp.abs(states), jnp.abs(_stacked(start)[None]))
        if damping:
            strength = _strength(damping, tolerance, residual, sizes)
            gain, free = gains(matrix, strength, reverse=self.loop.reverse), over_rows(strength == 0, residual)
            matrix, terms = product(gain, matrix), times(gain, residual)
        zeros = jnp.zeros_like(residual[0])
        corrections, running = affine_scan(matrix, terms, zeros, sizes, reverse=self.loop.reverse)
        # As a sum with the new states, it is exact even where the guess is far too large. Where the product of many
        # Jacobians overflows, the step itself is the next guess.
        finite = jnp.isfinite(corrections)
        moved = new_states + jnp.where(finite, corrections - residual, 0)
        ratios = jnp.abs(corrections) / (tolerance * running + jnp.finfo(running.dtype).tiny)
        # A correction that was held back does not tell how far the solution is.
        largest = jnp.max(jnp.where(finite & free & ~jnp.isnan(ratios), ratios, jnp.inf), initial=0)
        return _unstacked(moved, new), largest, all_finite(new)

    def _zeros(self, start: Vector) -> Vector:
        """Zeros as the leaves at every step."""
        return [jnp.zeros_like(jnp.broadcast_to(leaf, (self.loop.chunk.steps, *leaf.shape))) for leaf in start]

    def _at_all_steps(self, function: Callable[..., Any], before: Vector, read_values: Sequence[Any]) -> Any:
        """A function of the leaves before each step and of the values that it reads, such as the leaves after it."""

        def at_step(carry: list[Any], *read_values: Any) -> Any:
            return function(carry, read_values)

        return jax.vmap(at_step, in_axes=(0, *self.loop.axes))(before, *read_values)


def _strength(damping: float, tolerance: float, residual: Any, sizes: Any) -> Any:
    """The strength of the trust region at each element: proportional to the largest residual, and 0 near the solution.

    There the iterations are those of Newton's method, and their corrections tell whether they have converged.
    """
    error, size = (jnp.max(leaf, axis=0, initial=0) for leaf in (jnp.abs(residual), sizes))
    part = jnp.minimum(jnp.max(error / (size + jnp.finfo(size.dtype).tiny), axis=0), 1)
    return jnp.where(part > tolerance**0.5, damping * part, 0)


def _tolerance(newton: Newton, leaves: Vector, *, dense: bool) -> float:
    if newton.tolerance is not None:
        return newton.tolerance
    epsilon = max(float(jnp.finfo(leaf.dtype).eps) for leaf in leaves)
    # A correction by a part of the Jacobian does not tell what later steps make of it, and the next is not its square.
    return 16 * epsilon if dense else epsilon**0.75


def _wide(leaf: Any) -> Any:
    """An array in the dtype that corrections are computed in."""
    return leaf.astype(at_least_float32(leaf.dtype))


def _stacked(leaves: Vector, axis: int = 0) -> Any:
    """Leaves as one array, in that dtype."""
    return _wide(jnp.stack(leaves, axis))


def _unstacked(states: Any, like: Vector) -> Vector:
    """Leaves at every step, `(steps, ...)`, in the dtypes of others, from one array."""
    return [states[:, row].astype(leaf.dtype) for row, leaf in enumerate(like)]
