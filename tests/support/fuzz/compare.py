"""A random cell run by the fission engine and plainly: values, final carries and all gradients must be the same."""

from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from fuzz.choices import choices_of
from fuzz.layers import is_inexact
from fuzz.loop import loop
from fuzz.random_cells import Case
from rnnscan.engine.costs.heuristics import using


# Relative to the largest element of a leaf. Where something is float32, its rounding differs between two programs.
TOLERANCE, TOLERANCE_WITH_FLOAT32 = 1e-9, 1e-4
# Where results grow beyond this, the cell is too ill-conditioned to be compared.
LARGEST = 1e6
PLAIN = {"engine": "lax", "memory": None}
# What is compiled runs once, so it should compile quickly: this needs a quarter less time, on few cores.
COMPILER_OPTIONS = {"xla_cpu_parallel_codegen_split_count": 1, "xla_backend_optimization_level": 0}
# One cell in so many is also run by a loop in Python.
LOOP_EVERY = 10

# (params, closed, carry, xs) -> (final carry, ys)
Run = Callable[..., tuple[Any, Any]]


class UnequalError(AssertionError):
    """The fission engine gives another result."""


def check(seed: int, platforms: Collection[str] = ()) -> frozenset[str]:
    """Compare for one seed.

    Args:
        seed: the seed.
        platforms: whose choices the engine makes, one after the other; none: those that the seed draws.

    Returns:
        The features of its cell.

    Raises:
        UnequalError: if results differ, or if something fails; it says how to replay it.
        NotImplementedError: if rnnscan refuses, as it does segments under JAX_REMAT3=1 with an old jax.
    """
    with jax.enable_x64(True):
        try:
            comparison = Comparison(Case.of(seed))
            comparison.check(platforms)
            return comparison.features
        except NotImplementedError:
            raise
        except Exception as error:
            raise UnequalError(
                f"seed {seed}: {type(error).__name__}: {error}\n"
                f"Replay it: PYTHONPATH=tests:tests/support python -m fuzz --start {seed} --count 1 --show"
                + "".join(f" --platform {platform}" for platform in platforms)
            ) from error


def features(seed: int) -> frozenset[str]:
    """The features of a seed's cell, without running it."""
    with jax.enable_x64(True):
        return Comparison(Case.of(seed)).features


class Comparison:
    """One case, run in several ways, with a loss that weighs its results at random."""

    def __init__(self, case: Case) -> None:
        self.case = case
        random = np.random.default_rng([case.seed, 7])
        self._kind_of_loss = str(random.choice(["all", "the outputs", "the last carry", "some leaves"]))
        groups = list(case.arguments)
        self._wanted = groups if random.random() < 0.6 else [group for group in groups if random.random() < 0.5]

    @property
    def features(self) -> frozenset[str]:
        some = {"gradient in some arguments"} if len(self._wanted) < len(self.case.arguments) else set()
        return self.case.features | {f"loss of {self._kind_of_loss}"} | some

    def check(self, platforms: Collection[str] = ()) -> None:
        case = self.case
        expected = self.results_and_gradients(self.by_scan(PLAIN, inner=PLAIN))
        for leaf in jax.tree.leaves(expected):
            if is_inexact(leaf):
                assert np.all(np.abs(np.asarray(leaf)) < LARGEST), "the cell itself is ill-conditioned"
        for whose, choices in chain.from_iterable(map(choices_of, platforms or (case.backend,))):
            with using(choices):
                results = self.results_and_gradients(self.by_engine())
            self._assert_close(results, expected, f"fission, with the choices of {whose}")
        if not platforms and case.seed % LOOP_EVERY == 0:
            self._assert_close(self.results_and_gradients(self.by_loop(), jit=False), expected, "the loop")

    def by_engine(self) -> Run:
        return self.by_scan({"engine": "auto", "memory": self.case.memory, "unroll": self.case.unroll}, inner=None)

    def by_scan(self, options: dict[str, Any], *, inner: dict[str, Any] | None) -> Run:
        case = self.case

        def run(params: Any, closed: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            cell = case.cell(closed, inner=inner)
            return rs.scan(cell, params, carry, xs, length=case.length, **case.rows_and_order, **options)

        return run

    def by_loop(self) -> Run:
        case = self.case
        cell = jax.jit(lambda params, closed, carry, x: case.cell(closed, inner=PLAIN, names=False)(params, carry, x))
        return partial(loop, cell, length=case.length, batch=case.batch, **case.rows_and_order)

    def results_and_gradients(self, run: Run, *, jit: bool = True) -> dict[str, Any]:
        """Values, loss, and the gradients in all floats of the wanted arguments."""
        compute, *arguments = self.with_gradients(run)
        (loss, (final, ys)), gradients = (jax.jit(compute, compiler_options=COMPILER_OPTIONS) if jit else compute)(
            *arguments
        )
        return {"final": final, "ys": ys, "loss": loss, "gradients": gradients}

    def with_gradients(self, run: Run) -> tuple[Callable[..., Any], list[Any], list[Any]]:
        """The function that computes them, and its arguments."""
        arguments = self.case.arguments
        leaves, structure = jax.tree.flatten(arguments)
        groups = [group for group, tree in arguments.items() for _ in jax.tree.leaves(tree)]
        positions = [
            position
            for position, (group, leaf) in enumerate(zip(groups, leaves, strict=True))
            if group in self._wanted and is_inexact(leaf)
        ]

        def total(wanted: list[Any], leaves: list[Any]) -> tuple[Any, Any]:
            leaves = list(leaves)
            for position, leaf in zip(positions, wanted, strict=True):
                leaves[position] = leaf
            result = run(**jax.tree.unflatten(structure, leaves))
            return self._loss(*result), result

        return jax.value_and_grad(total, has_aux=True), [leaves[position] for position in positions], leaves

    def _loss(self, final: Any, ys: Any) -> Any:
        """A sum with random weights over some leaves; the others have symbolic zeros as their cotangents."""
        random = np.random.default_rng([self.case.seed, 8])
        final_leaves, ys_leaves = jax.tree.leaves(final), jax.tree.leaves(ys)
        chosen = [*final_leaves, *ys_leaves]
        match self._kind_of_loss:
            case "the outputs":
                chosen = ys_leaves
            case "the last carry":
                chosen = final_leaves
            case "some leaves":
                chosen = [leaf for leaf in chosen if random.random() < 0.5]
        total = jnp.zeros(())
        for leaf in filter(is_inexact, chosen):
            for part in [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else [leaf]:
                total += jnp.sum(part * (random.normal(size=part.shape) + part / 2))
        return total

    def _assert_close(self, actual: Any, expected: Any, who: str) -> None:
        has_float32 = bool({"carry: float32", "parameters in float32"} & self.case.features)
        tolerance = TOLERANCE_WITH_FLOAT32 if has_float32 else TOLERANCE
        assert jax.tree.structure(actual) == jax.tree.structure(expected), f"{who}: another structure"
        paths = jax.tree_util.tree_leaves_with_path(expected)
        for (path, wanted), got in zip(paths, jax.tree.leaves(actual), strict=True):
            where = f"{who}: {jax.tree_util.keystr(path)}"
            types = (got.shape, got.dtype), (wanted.shape, wanted.dtype)
            assert types[0] == types[1], f"{where} is {types[0]}, expected {types[1]}"
            if jnp.issubdtype(wanted.dtype, jax.dtypes.prng_key):
                got, wanted = jax.random.key_data(got), jax.random.key_data(wanted)
            got, wanted = np.asarray(got), np.asarray(wanted)
            if not np.issubdtype(wanted.dtype, np.inexact):
                assert np.array_equal(got, wanted), f"{where} is\n{got}\nexpected\n{wanted}"
                continue
            scale = 1 + np.max(np.abs(wanted), initial=0)
            worst = np.max(np.abs(got - wanted), initial=0) / scale
            assert worst <= tolerance, f"{where} is off by {worst:.1e}:\n{got}\nexpected\n{wanted}"
