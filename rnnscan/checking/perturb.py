"""Change a part of the inputs, and find what else changes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from rnnscan._util.messages import is_key
from rnnscan.checking.compare import Finding, change, changed, place, relative_error, wide
from rnnscan.checking.leaves import is_inexact
from rnnscan.checking.trial import Trial


# What replaces values that must not be read. Numbers come first, because their message says more.
FILLS = ("other numbers", "nan", "inf")
_VALUES = {"nan": np.nan, "inf": np.inf}


def fill(trial: Trial, tree: Any, where: np.ndarray, what: str, axes: str) -> Any:
    """A pytree with other values in some places.

    Args:
        trial: the trial, for its seed.
        tree: inputs `(T, N, ...)`, or a carry `(N, ...)`.
        where: the places, `(T, N)` for inputs and `(N,)` for a carry.
        what: one of `FILLS`.
        axes: "xs" or "carry".
    """
    random = trial.random(what, axes)
    return jax.tree.map(lambda leaf: _filled(trial, random, leaf, where, what), tree)


def _filled(trial: Trial, random: np.random.Generator, leaf: Any, where: np.ndarray, what: str) -> Any:
    if not trial.has_rows:
        where = where[..., 0]
    if is_key(leaf) or leaf.shape[: where.ndim] != where.shape:
        return leaf
    where = where.reshape(*where.shape, *[1] * (leaf.ndim - where.ndim))
    if what in _VALUES:
        return np.where(where, np.asarray(_VALUES[what], leaf.dtype), leaf) if is_inexact(leaf) else leaf
    if is_inexact(leaf):
        other = leaf + (1 + random.random(leaf.shape)) * (np.abs(leaf).mean() or 1.0)
    else:  # A permutation of all steps and rows keeps integers in their range.
        other = random.permutation(leaf.reshape(-1)).reshape(leaf.shape)
    return np.where(where, other.astype(leaf.dtype), leaf)


def unaffected(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    where: Callable[[str, Any], np.ndarray | None],
    cause: str,
) -> Finding:
    """Find a value that changed where none may, in any bit.

    Args:
        before: arrays by place.
        after: the same after a change of the inputs.
        where: the places of a leaf that must not change; None: no place of it.
        cause: what was changed, for the sentence: "xs at step 3 changes".
    """
    for name, value in before.items():
        places = where(name, value)
        if places is None:
            continue
        differs = changed(value, after[name]) & places
        if differs.any():
            index = _largest(value, after[name], differs)
            how = change(wide(value)[index], wide(after[name])[index])
            return Finding(np.inf, f"{name}{place(name, index)} {how} where {cause}")
    return Finding()


def same_gradients(
    trial: Trial,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    where: Callable[[str, Any], np.ndarray | None],
    cause: str,
) -> Finding:
    """Find a gradient that changed where none may, by more than rounding: a loop may add it up in another order."""
    for name, value in before.items():
        places = where(name, value)
        if places is None:
            continue
        differs = (relative_error(after[name], value) > trial.tolerance) & places
        if differs.any():
            index = _largest(value, after[name], differs)
            how = change(wide(value)[index], wide(after[name])[index])
            return Finding(np.inf, f"the gradient of {name}{place(name, index)} {how} where {cause}")
    return Finding()


def _largest(before: Any, after: Any, differs: np.ndarray) -> tuple[Any, ...]:
    """The first step with a change, and there the largest."""
    before, after = wide(before), wide(after)
    first = int(np.argwhere(differs)[0][0]) if differs.ndim else 0
    amounts = np.zeros(differs.shape)
    if before.dtype.kind in "fc":
        with np.errstate(all="ignore"):
            amounts = np.nan_to_num(np.abs(after - before), nan=np.inf)
    amounts = np.where(differs, amounts, -1)
    if differs.ndim:
        amounts[:first] = -1
        amounts[first + 1 :] = -1
    return tuple(map(int, np.unravel_index(int(amounts.argmax()), amounts.shape)))


def zero(gradients: Mapping[str, Any], where: Callable[[str, Any], np.ndarray | None], of: str) -> Finding:
    """Find a gradient that is not exactly zero where it must be.

    Args:
        gradients: by place.
        where: the places of a leaf that must be zero; None: no place of it.
        of: which outputs the gradient is of, for the sentence.
    """
    for name, value in gradients.items():
        places = where(name, value)
        if places is None:
            continue
        wrong = (wide(value) != 0) & places
        if wrong.any():
            index = tuple(map(int, np.argwhere(wrong)[0]))
            return Finding(
                np.inf,
                f"the gradient of {name}{place(name, index)} is {wide(value)[index].item():.3g}, and must be 0 for a "
                f"loss of {of}",
            )
    return Finding()


def at(trial: Trial, places: np.ndarray, *roots: str) -> Callable[[str, Any], np.ndarray | None]:
    """Places `(T, N)` of outputs and inputs, or `(N,)` of a carry, as places of a leaf with more axes.

    Args:
        trial: the trial.
        places: `(T, N)` or `(N,)` booleans.
        roots: the leaves that have these places: "y", "xs" or "carry".
    """
    if not trial.has_rows:
        places = places[..., 0]

    def where(name: str, leaf: Any) -> np.ndarray | None:
        if name.split("/")[0] not in roots or leaf.shape[: places.ndim] != places.shape:
            return None
        shape = wide(leaf).shape
        return np.broadcast_to(places.reshape(*places.shape, *[1] * (len(shape) - places.ndim)), shape)

    return where


def either(*choices: Callable[[str, Any], np.ndarray | None]) -> Callable[[str, Any], np.ndarray | None]:
    """The first of several choices of places that knows a leaf."""

    def where(name: str, leaf: Any) -> np.ndarray | None:
        return next((places for choice in choices if (places := choice(name, leaf)) is not None), None)

    return where


def masked(cotangents: Mapping[str, Any], where: Callable[[str, Any], np.ndarray | None]) -> dict[str, Any]:
    """Cotangents that are zero except in some places."""
    kept = {}
    for name, value in cotangents.items():
        places = where(name, value)
        kept[name] = np.where(False if places is None else places, value, np.zeros((), value.dtype))
    return kept


def has_floats(tree: Any) -> bool:
    """Whether a NaN fits into a pytree."""
    return any(map(is_inexact, jax.tree.leaves(tree)))


def fills_of(tree: Any) -> Iterator[str]:
    """The fills that change a pytree."""
    yield from FILLS if has_floats(tree) else FILLS[:1]
