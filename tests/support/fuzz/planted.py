"""A random cell with NaN, inf or an overflow planted in its arguments: they reach what they reach in `lax.scan`.

What does not depend on a value in the loop does not depend on it in any plan, and a select chooses.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fuzz import options as scan_options
from fuzz.choices import choices_of
from fuzz.compare import COMPILER_OPTIONS, PLAIN, TOLERANCE, TOLERANCE_WITH_FLOAT32, Comparison, Run, UnequalError
from fuzz.layers import is_inexact
from fuzz.orders import RefusedError
from fuzz.planted_parts import CARRIES, PLANTED_OPERATIONS
from fuzz.random_cells import Case
from rnnscan.engine.costs.heuristics import using


PLANTS = (np.nan, np.inf, -np.inf, 1e200, -1e200)
MODES = ("reverse", "forward", "forward over reverse")


class PlantedCase(Case):
    """A case with selects, resets and decays, and with values that are not finite, or overflow, in its arguments."""

    carries = CARRIES
    operations = PLANTED_OPERATIONS

    @classmethod
    def of(cls, seed: int) -> Self:
        random = np.random.default_rng([seed, 20])
        length, batch = int(random.integers(3, 9)), int(random.integers(2, 4))
        rows = scan_options.random_rows(random, length, batch)
        if random.random() < 0.4:
            rows["reset"] = jnp.asarray(random.random((length, batch)) < 0.25)
        return replace(cls._with(random, seed, length, batch, rows), has_inputs=True)

    @cached_property
    def mode(self) -> str:
        """What is compared beside values."""
        return str(np.random.default_rng([self.seed, 21]).choice(MODES, p=[0.5, 0.25, 0.25]))

    @cached_property
    def is_plain(self) -> bool:
        """Whether no memory choice is in force."""
        return bool(np.random.default_rng([self.seed, 24]).random() < 0.1)

    @cached_property
    def xs(self) -> Any:
        random = np.random.default_rng([self.seed, 22])
        return {**super().xs, "chosen": jnp.asarray(random.random((self.length, self.batch)) < 0.7)}

    @cached_property
    def plants(self) -> dict[str, float]:
        """What is planted where. It is filled with the arguments."""
        return {}

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the case with one or two plants; a select often leaves out the row of one in xs."""
        arguments = super().arguments
        random = np.random.default_rng([self.seed, 23])
        for _ in range(1 + int(random.random() < 0.25)):
            group = str(random.choice(["xs", "carry", "params", "closed"], p=[0.6, 0.2, 0.1, 0.1]))
            places = _places(arguments[group])
            if not places:
                group, places = "xs", _places(arguments["xs"])
            paths, structure = jax.tree_util.tree_flatten_with_path(arguments[group])
            leaves = [leaf for _, leaf in paths]
            place = int(random.choice(places))
            index = tuple(int(random.integers(size)) for size in leaves[place].shape)
            value = float(random.choice(PLANTS))
            leaves[place] = leaves[place].at[index].set(np.nan if leaves[place].dtype == jnp.float32 else value)
            arguments = {**arguments, group: jax.tree.unflatten(structure, leaves)}
            self.plants[f"{group}{jax.tree_util.keystr(paths[place][0])}{list(index)}"] = value
            if group == "xs" and len(index) > 1 and random.random() < 0.6:
                chosen = arguments["xs"]["chosen"].at[index[:2]].set(False)
                arguments = {**arguments, "xs": {**arguments["xs"], "chosen": chosen}}
        return arguments

    def _read_inputs(self, draw: Any, x: Any) -> None:
        draw.chosen = x["chosen"]
        super()._read_inputs(draw, x)


def _places(tree: Any) -> list[int]:
    """The leaves in which a value can be planted."""
    leaves = jax.tree.leaves(tree)
    return [place for place, leaf in enumerate(leaves) if is_inexact(leaf) and np.ndim(leaf) and np.size(leaf)]


def check_planted(seed: int, platforms: Collection[str] = ()) -> frozenset[str]:
    """Compare for one seed.

    Args:
        seed: the seed.
        platforms: whose choices the engine makes, one after the other; none: those that the seed draws.

    Returns:
        The features of its cell.

    Raises:
        UnequalError: if results differ, or if something fails; it says how to replay it.
        RefusedError: if plain `lax.scan` fails, as it does for a `jax.custom_vjp` in forward mode.
    """
    with jax.enable_x64(True):
        comparison = PlantedComparison(PlantedCase.of(seed))
        try:
            comparison.check(platforms)
        except (NotImplementedError, RefusedError):
            raise
        except Exception as error:
            case = comparison.case
            raise UnequalError(
                f"seed {seed}: {case.plants}, {case.mode}, carry {case.kinds}, "
                f"{None if case.is_plain else case.memory}: "
                f"{type(error).__name__}: {error}\n"
                f"Replay it: PYTHONPATH=tests:tests/support python -m fuzz --planted --start {seed} --count 1 --show"
                + "".join(f" --platform {platform}" for platform in platforms)
            ) from error
        return comparison.features


@lru_cache
def lax_scan_drops_rules() -> bool:
    """Whether plain `lax.scan` drops the rule of a `jax.custom_jvp` in a second derivative, as before jax 0.12.

    A NaN in a relu has a zero as its tangent outside of `lax.scan`, where the rule selects, and a NaN within.
    """

    def total(xs: Any) -> Any:
        return lax.scan(lambda carry, x: (carry, jax.nn.relu(x)), 0.0, xs)[1].sum()

    xs = jnp.full(2, jnp.nan)
    return bool(jnp.isnan(jax.jvp(lambda xs: jax.value_and_grad(total)(xs)[0], (xs,), (xs,))[1]))


class PlantedComparison(Comparison):
    """One planted case, run in several ways."""

    case: PlantedCase

    def check(self, platforms: Collection[str] = ()) -> None:
        case = self.case
        try:
            expected = self._results(self.by_scan(PLAIN, inner=PLAIN))
        except Exception as error:
            raise RefusedError from error
        memory = None if case.is_plain else case.memory
        fission = {"engine": "auto", "memory": memory, "unroll": case.unroll}
        for whose, choices in chain.from_iterable(map(choices_of, platforms or (case.backend,))):
            with using(choices):
                actual = self._results(self.by_scan(fission, inner=None))
            wanted = expected
            drops_rules = case.mode == "forward over reverse" and lax_scan_drops_rules()
            if drops_rules and not self._is_same(actual, expected):
                # Each leaf has the values of `lax.scan`, or those that the rules give in a loop.
                choose = lambda got, by_scan, by_loop: by_scan if self._is_same(got, by_scan) else by_loop  # noqa: E731
                wanted = jax.tree.map(choose, actual, expected, self._results(self.by_loop()))
            self._assert_same(actual, wanted, f"with the choices of {whose}")

    def _results(self, run: Run) -> dict[str, Any]:
        return results(run, self.case.arguments, self._loss, mode=self.case.mode, groups=self._wanted)

    def _is_same(self, actual: Any, expected: Any) -> bool:
        try:
            self._assert_same(actual, expected, "")
        except AssertionError:
            return False
        return True

    def _assert_same(self, actual: Any, expected: Any, who: str) -> None:
        has_float32 = bool({"carry: float32", "parameters in float32"} & self.case.features)
        tolerance = TOLERANCE_WITH_FLOAT32 if has_float32 else TOLERANCE
        assert_not_spread(actual, expected, who, tolerance=tolerance)


def results(
    run: Callable[..., tuple[Any, Any]],
    arguments: dict[str, Any],
    loss: Callable[[Any, Any], Any],
    *,
    mode: str,
    groups: Collection[str],
) -> dict[str, Any]:
    """Values and derivatives in one program.

    Args:
        run: takes the arguments by name.
        arguments: pytrees of arrays.
        loss: of the final carry and ys, whose elements that are not finite are zeros for it, or all gradients were NaN.
        mode: which derivatives; one of `MODES`.
        groups: the names of the arguments that derivatives are taken in, as far as they are floats.
    """
    leaves, structure = jax.tree.flatten(arguments)
    names = [name for name, tree in arguments.items() for _ in jax.tree.leaves(tree)]
    positions = [
        position
        for position, (name, leaf) in enumerate(zip(names, leaves, strict=True))
        if name in groups and is_inexact(leaf)
    ]

    def parts(wanted: list[Any], leaves: list[Any]) -> tuple[Any, Any]:
        leaves = list(leaves)
        for position, leaf in zip(positions, wanted, strict=True):
            leaves[position] = leaf
        final, ys = run(**jax.tree.unflatten(structure, leaves))
        outputs = jax.tree.leaves((final, ys))
        total = loss(*jax.tree.map(_only_finite, (final, ys)))
        return (total, [*filter(is_inexact, outputs)]), [leaf for leaf in outputs if not is_inexact(leaf)]

    def compute(wanted: list[Any], leaves: list[Any]) -> dict[str, Any]:
        def value_and_gradient(wanted: list[Any]) -> Any:
            def total(wanted: list[Any]) -> Any:
                (total, floats), others = parts(wanted, leaves)
                return total, (floats, others)

            (total, (floats, others)), gradient = jax.value_and_grad(total, has_aux=True)(wanted)
            return (total, floats, gradient), others

        directions = jax.tree.map(lambda leaf: jnp.ones_like(leaf) / 2, wanted)
        if mode == "reverse":
            (total, floats, gradient), others = value_and_gradient(wanted)
            return {"values": floats, "others": others, "gradient": gradient, "loss": total}
        function = value_and_gradient if mode == "forward over reverse" else lambda wanted: parts(wanted, leaves)
        values, tangents, others = jax.jvp(function, (wanted,), (directions,), has_aux=True)
        return {"values": values, "tangents": tangents, "others": others}

    wanted = [leaves[position] for position in positions]
    return jax.jit(compute, compiler_options=COMPILER_OPTIONS)(wanted, leaves)


def _only_finite(leaf: Any) -> Any:
    if not is_inexact(leaf):
        return leaf
    return jnp.where(jnp.isfinite(leaf) & (jnp.abs(leaf) < 1e100), leaf, 0)


def assert_not_spread(actual: Any, expected: Any, who: str, *, tolerance: float) -> None:
    """NaN and inf where and only where they are expected, and elsewhere equal values.

    Raises:
        AssertionError: its message begins with the kind of what differs: "spread", where a value should be finite;
            "lost", where it should not; "other", where it is NaN in place of inf or the like; or "value".
    """
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
            assert np.array_equal(got, wanted), f"value: {where} is\n{got}\nexpected\n{wanted}"
            continue
        shown = f"{where} is\n{got}\nexpected\n{wanted}"
        finite = np.isfinite(wanted)
        assert np.all(np.isfinite(got[finite])), f"spread: {shown}"
        assert not np.any(np.isfinite(got[~finite])), f"lost: {shown}"
        is_nan = np.isnan(wanted)
        assert np.array_equal(np.isnan(got), is_nan), f"other: {shown}"
        # A complex infinity may have one finite part, of which the last digits may differ.
        got, wanted = _parts(got[~is_nan]), _parts(wanted[~is_nan])
        finite = np.isfinite(wanted)
        assert np.array_equal(np.where(finite, 0, got), np.where(finite, 0, wanted)), f"other: {shown}"
        scale = 1 + float(np.max(np.abs(wanted[finite]), initial=0))
        if scale > 1e100:  # Where numbers near 1e200 cancel, their rounding is left, about 1e184 of each.
            scale = max(scale, 1e196)
        worst = np.max(np.abs(got[finite] / scale - wanted[finite] / scale), initial=0)
        assert worst <= tolerance, f"value: off by {worst:.1e}: {shown}"


def _parts(numbers: Any) -> Any:
    """Real and imaginary parts of complex numbers."""
    return np.stack([numbers.real, numbers.imag]) if np.iscomplexobj(numbers) else numbers
