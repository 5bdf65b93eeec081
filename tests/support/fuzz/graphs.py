"""A random cell against its graph: trace, any rewrites, back to a cell; equal values and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from fuzz.compare import Comparison, Run, UnequalError
from fuzz.random_cells import Case


# The seeds of `make test-all`.
SEEDS = 500
# One graph in so many is also scanned, by the cell's own memory choice.
SCAN_EVERY = 10
REWRITES: dict[str, Callable[[Any], Any]] = {}


def random_seeds(quick: tuple[int, ...]) -> list[Any]:
    """All seeds, those that are not of `quick` marked slow."""
    return [pytest.param(seed, marks=[] if seed in quick else [pytest.mark.slow]) for seed in range(SEEDS)]


def check_graph(seed: int) -> None:
    """Compare a seed's cell with the cell of its graph, rewritten at random.

    Raises:
        UnequalError: if they differ, or if something fails.
    """
    with jax.enable_x64(True):
        comparison = GraphComparison(Case.of(seed))
        try:
            comparison.check()
        except NotImplementedError:
            raise
        except Exception as error:
            raise UnequalError(
                f"seed {seed}, {comparison.rewrites}: {type(error).__name__}: {error}\n"
                f'Replay it: PYTHONPATH=tests:tests/support python -c "import conftest; '
                f'from fuzz.graphs import check_graph; check_graph({seed})"'
            ) from error


class GraphComparison(Comparison):
    """One step of a case, by its cell and by its graph."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        random = np.random.default_rng([case.seed, 9])
        count = int(random.integers(0, 7)) if REWRITES else 0
        self.rewrites = [str(random.choice(list(REWRITES))) for _ in range(count)]

    def check(self) -> None:
        step = self._step(lambda cell, *arguments: cell)
        expected = self.results_and_gradients(step)
        self._assert_close(self.results_and_gradients(self._step(self._through_a_graph)), expected, "the graph")
        if self.case.seed % SCAN_EVERY == 0:
            expected = self.results_and_gradients(self._scan(lambda cell, *arguments: cell))
            self._assert_close(self.results_and_gradients(self._scan(self._through_a_graph)), expected, "its scan")

    def _through_a_graph(self, cell: Any, *arguments: Any) -> Any:
        graph = rs.graph.trace(cell, *arguments)
        assert graph == rs.graph.trace(cell, *arguments), "traced again, the graph is another"
        for name in self.rewrites:
            graph = REWRITES[name](graph)
        return graph.to_cell()

    def _step(self, change: Callable[..., Any]) -> Run:
        def run(params: Any, closed: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            x = jax.tree.map(_first, xs)
            carry = jax.tree.map(jnp.asarray, carry)
            return change(self.case.cell(closed), params, carry, x)(params, carry, x)

        return run

    def _scan(self, change: Callable[..., Any]) -> Run:
        case = self.case

        def run(params: Any, closed: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            carry = jax.tree.map(jnp.asarray, carry)
            cell = change(case.cell(closed), params, carry, jax.tree.map(_first, xs))
            options = {**case.rows_and_order, "memory": case.memory, "unroll": case.unroll}
            return rs.scan(cell, params, carry, xs, length=case.length, **options)

        return run


def _first(leaf: Any) -> Any:
    """The input of the first step; zeros, where there is none."""
    return leaf[0] if leaf.shape[0] else jnp.zeros(leaf.shape[1:], leaf.dtype)
