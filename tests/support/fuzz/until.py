"""A random cell as the body of a `while_net`: results and gradients are those of the same loop, unrolled in Python."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from fuzz.compare import PLAIN, Comparison, Run, UnequalError
from fuzz.random_cells import Case


# How near a carry must be to the one that a loop stops at.
NEAR = 1e-6
MEMORIES = (
    rs.Memory(),
    rs.Memory(recompute="all"),
    rs.Memory(chunk=3),
    rs.Memory(segment=2),
    rs.Memory(segment="sqrt"),
    rs.Memory(segment=(5, 2), chunk=2),
)

# (carry, index of the step) -> whether another step runs
Condition = Callable[[Any, Any], Any]


def check_while(seed: int) -> int:
    """Compare for one seed.

    Returns:
        The number of steps that ran.

    Raises:
        UnequalError: if results differ, or if something fails.
    """
    with jax.enable_x64(True):
        try:
            comparison = WhileComparison(Case.of(seed))
            comparison.check()
            return comparison.steps
        except Exception as error:
            raise UnequalError(f"seed {seed}: {type(error).__name__}: {error}") from error


class WhileComparison(Comparison):
    """One case, as a loop that stops by a condition, and unrolled.

    The steps read the inputs of a sequence by their index. Options about rows and the order of steps are left out.
    """

    @cached_property
    def _random(self) -> np.random.Generator:
        return np.random.default_rng([self.case.seed, 9])

    @cached_property
    def _asked(self) -> int:
        """The number of steps after which the index, or the carry, is one that stops the loop."""
        return int(self._random.integers(0, self.case.length + 1))

    @cached_property
    def _condition(self) -> Condition:
        """By the number of steps, or by the carry after that number."""
        asked = self._asked
        if self._random.random() < 0.5:
            return lambda carry, index: index < asked
        final = self._plain(asked)
        pairs = lambda carry: zip(map(_number, jax.tree.leaves(carry)), map(_number, final), strict=True)  # noqa: E731

        def is_elsewhere(carry: Any, index: Any) -> Any:
            apart = [jnp.any(jnp.abs(here - there) > NEAR) for here, there in pairs(carry)]
            return jnp.any(jnp.asarray([*apart, False])) & (index < asked)

        return is_elsewhere

    def _plain(self, steps: int) -> list[Any]:
        """The leaves of the carry after some steps."""
        carry = self.case.arguments["carry"]
        for index in range(steps):
            carry = self._after(carry, index)
        return jax.tree.leaves(carry)

    @cached_property
    def steps(self) -> int:
        """The number of steps that the loop runs."""
        carry, index = self.case.arguments["carry"], 0
        while index < self.case.length and bool(self._condition(carry, index)):
            carry, index = self._after(carry, index), index + 1
        return index

    def _after(self, carry: Any, index: int) -> Any:
        """The carry after a step from this one."""
        arguments = self.case.arguments
        return self._compiled_cell(arguments["params"], arguments["closed"], carry, _at(arguments["xs"], index))

    @cached_property
    def _compiled_cell(self) -> Callable[..., Any]:
        return jax.jit(self._cell(names=False))

    def _cell(self, *, names: bool) -> Callable[..., Any]:
        inner = None if names else PLAIN
        return lambda params, closed, carry, x: self.case.cell(closed, inner=inner, names=names)(params, carry, x)[0]

    def _unrolled(self, steps: int) -> Run:
        cell = self._cell(names=False)

        def run(params: Any, closed: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            for index in range(steps):
                carry = cell(params, closed, carry, _at(xs, index))
            return carry, jnp.asarray(steps, jnp.int32)

        return run

    def _while(self, memory: rs.Memory, max_steps: int) -> Run:
        cell, condition = self._cell(names=True), self._condition

        def run(params: Any, closed: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            def body(params: Any, state: Any) -> Any:
                carry, index = state
                return cell(params, closed, carry, _at(xs, index)), index + 1

            (carry, _), steps = rs.while_net(
                lambda _, state: condition(*state),
                body,
                (carry, jnp.int32(0)),
                params=params,
                max_steps=max_steps,
                memory=memory,
                on_limit="stop",
            )
            return carry, steps

        return run

    def check(self) -> None:
        expected = self.results_and_gradients(self._unrolled(self.steps))
        memory = MEMORIES[self.case.seed % len(MEMORIES)]
        # Sometimes the limit is the number of steps.
        max_steps = max(1, self.case.length) + int(self._random.choice([0, 1, 20]))
        actual = self.results_and_gradients(self._while(memory, max_steps))
        self._assert_close(actual, expected, f"while_net with {memory} and max_steps={max_steps}")


def _at(xs: Any, index: Any) -> Any:
    """The inputs of a step; without any, a loop of no steps is traced with zeros."""

    def read(leaf: Any) -> Any:
        if not leaf.shape[0]:
            return jnp.zeros(leaf.shape[1:], leaf.dtype)
        return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)

    return jax.tree.map(read, xs)


def _number(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    return jax.random.key_data(leaf).astype(float) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf * 1
