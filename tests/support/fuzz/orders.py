"""A random cell under a random order of transformations: `rs.scan` must be what `lax.scan` is there.

A batch maps some of the arguments, so some leaves of the carry and of y have no batch, and others no tangent.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuzz.compare import COMPILER_OPTIONS, LARGEST, PLAIN, Comparison, UnequalError
from fuzz.layers import WRAPPERS, is_inexact, transformed
from fuzz.random_cells import Case


ROWS = 3
DERIVATIVES = ("none", "grad", "jvp", "jvp of grad", "linearize")


class RefusedError(Exception):
    """An order that is not compared."""


class Order(Comparison):
    """One case under one order of transformations.

    Attributes:
        layers: the transformations, from the inside to the outside.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(Case.of(seed))
        random = np.random.default_rng([seed, 10])
        pair = [str(random.choice(DERIVATIVES, p=[0.15, 0.4, 0.15, 0.15, 0.15])), "vmap"]
        main = [pair[place] for place in random.permutation(2)]
        self.layers: list[str] = []
        for layer in [*main, ""]:
            count = int(random.choice(3, p=[0.45, 0.45, 0.1]))
            self.layers += [str(name) for name in random.choice([*WRAPPERS], size=count)]
            self.layers += [layer] if layer else []
        if self.features & {"carry: key", "key input"}:
            # A branch that saves a key does not compile (jax 0.10.0), with a checkpoint in it not in plain JAX either.
            self.layers = [layer for layer in self.layers if layer != "cond"]
        leaves = jax.tree.leaves(self.case.arguments)
        self._floats = [index for index, leaf in enumerate(leaves) if is_inexact(leaf)]
        share = float(random.choice([0.2, 0.5, 0.9]))
        self._mapped = [index for index in self._floats if random.random() < share] or self._floats[:1]

    def check(self) -> None:
        """Compare `rs.scan` with plain `lax.scan`.

        Raises:
            RefusedError: if plain `lax.scan` fails, as it does for a `jax.custom_vjp` in forward mode; or if the cell
                has one and is differentiated twice, which `rs.scan` does not do.
        """
        case = self.case
        if "operation: custom vjp" in self.features and "jvp of grad" in self.layers:
            raise RefusedError
        try:
            expected = self._results(self.by_scan(PLAIN, inner=PLAIN))
        except Exception as error:
            raise RefusedError from error
        for leaf in jax.tree.leaves(expected):
            if is_inexact(leaf):
                assert np.all(np.abs(np.asarray(leaf)) < LARGEST), "the cell itself is ill-conditioned"
        fission = {"engine": "auto", "memory": case.memory, "unroll": case.unroll}
        actual = self._results(self.by_scan(fission, inner=None))
        self._assert_close(actual, expected, " of ".join(reversed(self.layers)))

    def _results(self, run: Callable[..., Any]) -> Any:
        leaves, structure = jax.tree.flatten(self.case.arguments)
        shared_places = [index for index in self._floats if index not in self._mapped]
        random = np.random.default_rng([self.case.seed, 12])
        batch = [_batch(random, leaves[index]) for index in self._mapped]
        shared = [leaves[index] for index in shared_places]

        def function(mapped: list[Any], shared: list[Any]) -> Any:
            whole = dict(enumerate(leaves)) | dict(zip(self._mapped, mapped, strict=True))
            whole |= dict(zip(shared_places, shared, strict=True))
            final, ys = run(**jax.tree.unflatten(structure, whole.values()))
            return {"loss": self._loss(final, ys), "rest": [*filter(is_inexact, jax.tree.leaves((final, ys)))]}

        function = transformed(function, [layer for layer in self.layers if layer != "none"])
        return jax.jit(function, compiler_options=COMPILER_OPTIONS)(batch, shared)


def _batch(random: Any, leaf: Any) -> Any:
    """Rows of a leaf, each a little different."""
    rows = jnp.broadcast_to(leaf, (ROWS, *leaf.shape))
    return (rows * (1 + 0.1 * random.normal(size=rows.shape))).astype(leaf.dtype)


def check_order(seed: int) -> list[str]:
    """Compare for one seed.

    Returns:
        The layers.

    Raises:
        UnequalError: if results differ, or if something fails.
    """
    with jax.enable_x64(True):
        order = Order(seed)
        try:
            order.check()
        except (NotImplementedError, RefusedError):
            raise
        except Exception as error:
            raise UnequalError(
                f"seed {seed}: {' of '.join(reversed(order.layers))}: {type(error).__name__}: {error}\n"
                f"Replay it: PYTHONPATH=tests:tests/support python -m fuzz --orders --start {seed} --count 1 --show"
            ) from error
        return order.layers
