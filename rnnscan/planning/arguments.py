"""The arguments of a scan or a net, split into arrays and constants, to trace the call and read its plans."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax

from rnnscan._util.refs import is_ref
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.randomness import without_key_on_purpose
from rnnscan.scan_observer import observing_scans
from rnnscan.scan_runner import without_runners


# (cell or net, params, carry, xs, **options) -> (carry, ys)
Run: TypeAlias = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Observed:
    """A plan that ran.

    Attributes:
        plan: the plan, with the arrays of its trace.
        options: the arguments of `scan` besides the parameters, the carry and the inputs, as they were given.
        ys: the stacked outputs.
    """

    plan: ExecutionPlan
    options: dict[str, Any]
    ys: Any


@dataclass(eq=False)
class _Plans:
    """A `PlanObserver`, which lists what it sees."""

    observed: list[Observed] = field(default_factory=list)

    def plan(self, plan: ExecutionPlan, options: dict[str, Any], ys: Any) -> None:
        self.observed.append(Observed(plan, options, ys))


@contextmanager
def observing_plans() -> Iterator[list[Observed]]:
    """A context that lists the plans of all scans that run in it, except scans inside a cell."""
    plans = _Plans()
    try:
        with observing_scans(plans):
            yield plans.observed
    finally:
        plans.observed = []  # JAX's caches hold the observer, which must not hold a trace.


class Arguments:
    """The arguments of a call of `scan`, or of a net.

    Args:
        run: runs the cell or net: `run(cell, params, carry, xs, **options) -> (carry, ys)`.
        cell: `cell(params, carry, x) -> (carry, y)`, or a net. It may close over traced values.
        params: its parameters. Here and below, leaves without a shape and a dtype are constants.
        carry: the initial carry; for a net it may be None.
        xs: the inputs.
        options: other arguments by name; some may be arrays.

    Attributes:
        arrays: the leaves that are arrays, or `jax.ShapeDtypeStruct`.
        shapes: their shapes and dtypes.
        roots: the argument of each leaf: "params", "carry", "xs" or the name of an option.
        places: the path of each leaf, such as "params['kernel']".
    """

    def __init__(self, run: Run, cell: Any, params: Any, carry: Any, xs: Any, options: Mapping[str, Any]) -> None:
        self.cell = cell
        self._run = run
        tree = (params, carry, xs, dict(options))
        leaves, self._structure = jax.tree.flatten(tree, is_leaf=lambda leaf: leaf is None)
        self._fixed = {place: leaf for place, leaf in enumerate(leaves) if not is_array(leaf)}
        self._count = len(leaves)
        self.arrays = [leaf for leaf in leaves if is_array(leaf)]
        paths = [path for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if is_array(leaf)]
        named = [(_root(path), path[2:] if path[0].idx == _OPTIONS else path[1:]) for path in paths]
        self.roots = [root for root, _ in named]
        self.places = [root + jax.tree_util.keystr(path) for root, path in named]
        self.shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.arrays]

    def with_arrays(self, arrays: Sequence[Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Params, carry, xs and options, with other arrays."""
        remaining = iter(arrays)
        leaves = [self._fixed[place] if place in self._fixed else next(remaining) for place in range(self._count)]
        return jax.tree.unflatten(self._structure, leaves)

    def eval_shape(self, function: Callable[..., Any]) -> Any:
        """Trace a function of the arrays."""
        return jax.eval_shape(function, *self.shapes)

    def run(self, arrays: Sequence[Any], **options: Any) -> tuple[Any, Any]:
        """Run the cell or net on these arrays."""
        return self._run_cell(self.cell, arrays, **options)

    def plans(self, arrays: Sequence[Any]) -> list[Observed]:
        """Run the cell or net inside a trace of the arrays, and return the plans that ran.

        A scan with a progress bar runs without it: with it there are plans of its windows.
        """
        with observing_plans() as observed:
            self._run_cell(without_runners(self.cell), arrays)
        return observed

    def _run_cell(self, cell: Any, arrays: Sequence[Any], **options: Any) -> tuple[Any, Any]:
        params, carry, xs, call_options = self.with_arrays(arrays)
        with without_key_on_purpose():
            return self._run(cell, params, carry, xs, **call_options, **options)


_OPTIONS = 3


def _root(path: Any) -> str:
    return str(path[1].key) if path[0].idx == _OPTIONS else ("params", "carry", "xs")[path[0].idx]


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, or the shape and dtype of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not is_ref(leaf)
