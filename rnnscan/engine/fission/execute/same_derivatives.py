"""Two ways to run one function: one that is fast, and one that JAX differentiates."""

from collections.abc import Callable
from typing import Any

import jax

from rnnscan.engine.fission.execute.leaves import replaced
from rnnscan.engine.fission.execute.linear_tangents import is_zero


def with_derivatives_of(slow: Callable[..., Any], fast: Callable[..., Any]) -> Callable[..., Any]:
    """`fast`, which JAX differentiates as if it were `slow`.

    Args:
        slow: a function of pytrees. It must hold no array of a trace.
        fast: one with the same results.
    """

    @jax.custom_jvp
    def call(*arguments: Any) -> Any:
        return fast(*arguments)

    def differentiate(primals: Any, tangents: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(primals)
        every = enumerate(jax.tree.leaves(tangents, is_leaf=is_zero))
        moved = {index: tangent for index, tangent in every if not is_zero(tangent)}

        def run(*some: Any) -> Any:
            return slow(*jax.tree.unflatten(structure, replaced(leaves, [*moved], some)))

        return jax.jvp(run, [leaves[index] for index in moved], [*moved.values()])

    call.defjvp(differentiate, symbolic_zeros=True)
    return call
