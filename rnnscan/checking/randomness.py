"""The check of random choices."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from rnnscan._util.messages import is_key
from rnnscan.checking.checks import Check, Part
from rnnscan.checking.compare import Finding, changed
from rnnscan.checking.leaves import by_path, types_of
from rnnscan.checking.perturb import unaffected
from rnnscan.checking.trial import Arrays, Size, Trial
from rnnscan.compose.wrapper import cells_within
from rnnscan.ir.jaxprs import all_equations
from rnnscan.randomness import with_key


# The primitives that draw numbers from a key.
_DRAWS = ("random_bits", "threefry2x32", "rng_bit_generator")


def _reason(trial: Trial) -> str | None:
    return None


def _parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    yield "without a key", two_traces_agree
    if is_random(trial):
        yield "with a key", one_key_makes_one_choice
        if trial.model.step is not None and not _shares_its_masks(trial.model.cell):
            yield "over steps", steps_draw_their_own
    if _keys(trial.start(trial.size)) and trial.model.step is not None:
        yield "keys in the carry", keys_in_the_carry_change


def is_random(trial: Trial) -> bool:
    """Whether a run draws numbers where it has a key."""

    def trace() -> bool:
        if "key" not in trial.model.options:
            return False
        try:
            with_one = _draws(trial, key=jax.random.key(0), first_step=0)
        except TypeError:  # A module that rejects a key, because its cell makes no choices with one.
            return False
        # A cell may draw from a key of its own besides.
        return with_one > _draws(trial)

    drawn: bool = trial.remember("is random", trace)
    return drawn


def _draws(trial: Trial, **options: Any) -> int:
    """How many times a run draws, as it is traced."""
    arrays = types_of(trial.arrays(trial.size))
    jaxpr = jax.make_jaxpr(lambda arrays: trial.model.run(*arrays, **options))(arrays)
    return sum(equation.primitive.name in _DRAWS for equation in all_equations(jaxpr.jaxpr))


def two_traces_agree(trial: Trial, size: Size) -> Finding:
    """Two traces of a run without a key. They differ if a number is drawn while the model is traced."""
    arrays = trial.arrays(size)
    return unaffected(
        trial.run(arrays).outputs,
        trial.run(arrays, wrap=_compiled_again).outputs,
        lambda name, leaf: np.ones(leaf.shape, bool),
        "the model is traced again, without a key",
    )


def _compiled_again(program: Any) -> Any:
    return jax.jit(lambda *arguments: program(*arguments))


def one_key_makes_one_choice(trial: Trial, size: Size) -> Finding:
    """Runs with one key, and with another."""
    arrays = trial.arrays(size)
    first, again, other = (
        trial.run(arrays, options={"key": jax.random.key(seed), "first_step": np.int32(0)}) for seed in (0, 0, 1)
    )
    everywhere = unaffected(
        first.outputs, again.outputs, lambda name, leaf: np.ones(leaf.shape, bool), "it runs with the same key again"
    )
    if everywhere.problem:
        return everywhere
    if not any(changed(first.outputs[name], other.outputs[name]).any() for name in first.outputs):
        return Finding(np.inf, "every key makes the same random choices")
    return Finding()


def steps_draw_their_own(trial: Trial, size: Size) -> Finding:
    """One step with equal inputs and carries, at several numbers of the step."""
    arrays = trial.arrays(Size(1, size.rows))
    x = jax.tree.map(lambda leaf: leaf[0], arrays.xs)
    keys = jax.random.split(jax.random.key(trial.seed), 2)
    cell = trial.model.cell

    def at_step(key: Any, number: Any) -> Any:
        return with_key(cell, key, arrays.params, x)(arrays.params, arrays.carry, (x, number))

    numbers = np.arange(8, dtype=np.int32)
    by_key = [jax.jit(jax.vmap(at_step, in_axes=(None, 0)))(key, numbers) for key in keys]
    drawn, other = (by_path(results, "y") for results in by_key)
    depends_on_key = any(changed(drawn[name], other[name]).any() for name in drawn)
    depends_on_step = any(changed(value[:1], value).any() for value in drawn.values())
    if depends_on_key and not depends_on_step:
        return Finding(np.inf, "steps 0 to 7 draw the same mask from one key where their inputs and carries are equal")
    return Finding()


def _shares_its_masks(cell: Any) -> bool:
    """Whether a cell within says that all steps share a mask, as variational dropout does."""
    return any(getattr(each, "each", None) == "sequence" for each in cells_within(cell))


def _keys(tree: Any) -> list[str]:
    """The places of the PRNG keys in a carry: typed, or pairs of uint32."""
    return [name for name, leaf in by_path(tree, "carry").items() if _may_be_key(leaf)]


def _may_be_key(leaf: Any) -> bool:
    return is_key(leaf) or (leaf.dtype == np.uint32 and leaf.shape[-1:] == (2,))


def keys_in_the_carry_change(trial: Trial, size: Size) -> Finding:
    """A step that draws from a key in its carry hands on another one."""
    size = Size(1, size.rows)
    arrays = trial.arrays(size)
    before = by_path(arrays.carry, "carry")
    results = trial.run(arrays)
    for name in _keys(arrays.carry):
        if changed(before[name], results.outputs[name]).any():
            continue
        others = {path: _other_key(leaf) if path == name else leaf for path, leaf in before.items()}
        carry = jax.tree.unflatten(jax.tree.structure(arrays.carry), list(others.values()))
        after = trial.run(Arrays(arrays.params, carry, arrays.xs))
        if any(changed(results.outputs[path], after.outputs[path]).any() for path in results.outputs if path != name):
            return Finding(
                np.inf, f"{name} is a key that a step draws from and hands on as it was: every step reuses it"
            )
    return Finding()


def _other_key(leaf: Any) -> Any:
    return jax.random.fold_in(leaf, 1) if is_key(leaf) and not leaf.shape else np.asarray(leaf) + np.uint32(1)


RANDOMNESS = Check(
    "randomness",
    "Without a key nothing is drawn; with one, each step draws its own mask.",
    _reason,
    _parts,
    is_long=False,
)
