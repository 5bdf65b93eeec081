"""Compiled programs of one cell that closes over arrays, for calls outside `jax.jit`.

These arrays may be others at the next call. So each call traces one step of the cell, which tells the arrays that it
reads now, and a program of an equal step runs with the arrays as operands.
"""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rnnscan.engine.cache.bounded_cache import BoundedCache
from rnnscan.ir.invalid_values import search_first
from rnnscan.ir.jaxprs import all_equations, inner_jaxprs
from rnnscan.ir.structure import structure_of_jaxpr


class ClosedOver(NamedTuple):
    """The closure of a cell, as a trace of one step shows it.

    Attributes:
        traced: the trace.
        positions: the constants of it that are not among the arguments of the call.
    """

    traced: Any
    positions: tuple[int, ...]

    @property
    def arrays(self) -> list[Any]:
        """The arrays that the cell closes over."""
        return [self.traced.consts[position] for position in self.positions]

    @property
    def key(self) -> Hashable:
        """Equal for steps that differ in the numbers of these arrays only."""
        return structure_of_jaxpr(self.traced.jaxpr), self.positions, tuple(map(jax.typeof, self.arrays))


class ClosurePrograms:
    """The programs of one cell, with one choice of options and shapes."""

    def __init__(self) -> None:
        self._programs = BoundedCache(_MOST)

    def run(self, run: Callable[..., Any], closed_over: ClosedOver, arrays: dict[str, Any]) -> Any:
        """Run a call.

        Args:
            run: the call as a function of its arrays by name. It traces the cell.
            closed_over: the arrays that its cell closes over.
            arrays: the arrays.
        """
        if _has_own_rules(closed_over.traced.jaxpr):
            return run(**arrays)
        key = closed_over.key
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = _program(run, closed_over, arrays)
        return run(**arrays) if program is _NOT_KEPT else program(closed_over.arrays, arrays)


# A cell under two kinds of tracers, say with and without a gradient, has one program.
_MOST = 4
_NOT_KEPT = object()
_JAX = str(Path(jax.__file__).parent)


def _program(run: Callable[..., Any], closed_over: ClosedOver, arrays: dict[str, Any]) -> Any:
    """A compiled function of the closed-over arrays and the others; `_NOT_KEPT` if it cannot be had."""
    traced, shapes = jax.make_jaxpr(lambda arrays: run(**arrays), return_shape=True)(arrays)
    places = {id(array): place for place, array in enumerate(closed_over.arrays)}
    operands = [places.get(id(const)) for const in traced.consts]
    constants = [const if place is None else None for const, place in zip(traced.consts, operands, strict=True)]
    has_all = {*places.values()} <= {*operands}  # One that the cell makes while it is traced is another each time.
    if not has_all or any(isinstance(const, jax.core.Tracer) for const in constants):
        return _NOT_KEPT
    jaxpr, structure = traced.jaxpr, jax.tree.structure(shapes)

    def evaluate(closed_over: Sequence[Any], arrays: dict[str, Any]) -> Any:
        consts = [
            const if place is None else closed_over[place] for const, place in zip(constants, operands, strict=True)
        ]
        return jax.tree.unflatten(structure, jax.core.eval_jaxpr(jaxpr, consts, *jax.tree.leaves(arrays)))

    def program(closed_over: Sequence[Any], arrays: dict[str, Any]) -> Any:
        search_first(evaluate, closed_over, arrays)
        return evaluate(closed_over, arrays)

    return jax.jit(program)


def _has_own_rules(jaxpr: Any) -> bool:
    """Whether a jaxpr has a derivative rule that is not JAX's: what such a rule closes over is in no trace."""
    for equation in all_equations(jaxpr):
        inner = list(inner_jaxprs(equation.params))
        sources = [str(getattr(inner_jaxpr.debug_info, "func_src_info", None)) for inner_jaxpr in inner]
        if equation.primitive.name.startswith("custom_") and not all(_JAX in source for source in sources):
            return True
    return False
