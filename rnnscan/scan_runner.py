"""Cells that run the scan of the cell within themselves, such as `rs.progress`, at any depth of cells.

Such a cell has `run_scan`, which `scan` calls in place of its own work. Its step is that of the cell within.
"""

from typing import Any, Protocol, runtime_checkable

import jax


@runtime_checkable
class ScanRunner(Protocol):
    """A cell that runs the scan of the cell within itself.

    Attributes:
        cell: the cell within.
    """

    cell: Any

    def around(self, cell: Any) -> "ScanRunner":
        """The same around another cell.

        Args:
            cell: the cell.
        """
        ...

    def run_scan(self, params: Any, carry: Any, xs: Any, steps: int, options: dict[str, Any]) -> tuple[Any, Any]:
        """Run the scan of the cell within.

        Args:
            params: the parameters.
            carry: the carry before the first step.
            xs: the inputs, as arrays.
            steps: the number of steps.
            options: all other arguments of `scan`.
        """
        ...


def runner_of(cell: Any) -> ScanRunner | None:
    """The first runner in a cell of cells, around the whole cell; None without one.

    The cells within cells are found where they are pytrees, as those of the library are.
    """
    runner = next((leaf for leaf in jax.tree.leaves(cell, is_leaf=_is_runner) if _is_runner(leaf)), None)
    return None if runner is None else runner.around(without_runners(cell))


def around_step(module: Any, step: Any) -> Any:
    """The step of a module of Flax, within the runner that its cell of rnnscan holds; the step itself without one.

    Args:
        module: the module, which has the cell as its attribute `cell`; a cell of Flax has none.
        step: a function `(params, carry, x) -> (carry, y)` that calls the module.
    """
    runner = runner_of(getattr(module, "cell", None))
    return step if runner is None else runner.around(step)


def without_runners(cell: Any) -> Any:
    """The cell, where the cell within each runner is in its place."""
    return jax.tree.map(lambda leaf: without_runners(leaf.cell) if _is_runner(leaf) else leaf, cell, is_leaf=_is_runner)


def _is_runner(cell: Any) -> bool:
    return isinstance(cell, ScanRunner)
