"""The sizes and the dtype at which a model is checked."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import describe_tree, is_array_like
from rnnscan.checking.compare import place, wide
from rnnscan.checking.leaves import cast
from rnnscan.checking.model import Model
from rnnscan.checking.trial import FEW, Arrays, Size, Trial
from rnnscan.checking.types import keeps_its_types
from rnnscan.ir.jaxprs import all_equations


# The most steps of a trial where the user does not say. 64-step chunks have three seams in it.
MOST_STEPS = 256
ROWS = 3

_TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.1, "float16": 0.02}


def trial_of(
    model: Model,
    given: tuple[Any, Any, Any],
    *,
    steps: int | None,
    seed: int,
    tolerance: float | None,
    batched: bool | None,
) -> Trial:
    """The trial of a model: the steps of its inputs, 2 or 3 rows and float64, if it allows them.

    Args:
        model: the model.
        given: params, carry and xs.
        steps: the steps; None: those of the inputs, but from 8 to 256.
        seed: the seed of random inputs.
        tolerance: the largest difference; None: as the dtype says.
        batched: whether inputs have rows; None: as the model and they say.

    Raises:
        TypeError: if the inputs are not arrays with a time axis.
        ValueError: if the model's results are not finite, or have no time axis.
    """
    params, carry, xs = (_as_arrays(tree) for tree in given)
    leaves = jax.tree.leaves(xs)
    if not leaves or not all(is_array_like(leaf) and len(leaf.shape) for leaf in leaves):
        raise TypeError(
            f"check: xs must be arrays or types with a time axis, (T, N, ...); got {describe_tree(xs)}. A model "
            "without inputs can take zeros (T, N)."
        )
    rows = _has_rows(model, carry, leaves) if batched is None else batched
    errors: list[Exception] = []
    for dtype, size in _settings(leaves, rows, steps):
        trial = Trial(model, (params, carry, xs), rows, size, dtype, 0.0, seed=seed)
        try:
            with jax.enable_x64(dtype == jnp.float64):
                narrow = _narrowest(trial)
                break
        except _ShapeError:
            raise
        except Exception as error:
            errors.append(error)
    else:
        # The sizes of the user fail too, so the error is the model's. If its carry is at fault, the report says so.
        if not _keeps_its_types(trial):
            return replace(trial, broken=True, tolerance=_TOLERANCES[jnp.dtype(trial.dtype).name])
        raise errors[-1]
    if _runs(trial, few := Size(FEW, size.rows)):
        trial = replace(trial, short=few)
    narrow = None if narrow == jnp.dtype(dtype) else narrow
    working = jnp.dtype(dtype if narrow is None else narrow).name
    return replace(trial, tolerance=_TOLERANCES[working] if tolerance is None else tolerance, narrow=narrow)


def _as_arrays(tree: Any) -> Any:
    """NumPy arrays, types and PRNG keys in place of other leaves, such as numbers."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct) or (
            hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        ):
            return leaf
        if not hasattr(leaf, "dtype"):
            leaf = jnp.asarray(leaf)
        return np.asarray(leaf)

    return jax.tree.map(convert, tree)


def _has_rows(model: Model, carry: Any, leaves: list[Any]) -> bool:
    if model.says_rows is not None:
        return model.says_rows(len(leaves[0].shape))
    if any(len(leaf.shape) < 2 for leaf in leaves):
        return False
    if all(len(leaf.shape) > 2 or not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        return True
    carries = jax.tree.leaves(carry)
    return bool(carries) and all(leaf.shape[:1] == leaves[0].shape[1:2] for leaf in carries)


def _settings(leaves: list[Any], has_rows: bool, steps: int | None) -> Iterator[tuple[Any, Size]]:
    """Dtypes and sizes to try, the best first. A model may be made for one number of rows, or of steps."""
    given = Size(leaves[0].shape[0], leaves[0].shape[1] if has_rows else 1)
    rows = min(max(given.rows, 2), ROWS) if has_rows else 1
    best = min(max(given.steps, FEW), MOST_STEPS) if steps is None else steps
    sizes = dict.fromkeys((Size(best, rows), Size(best, given.rows)))
    if steps is None:
        sizes |= dict.fromkeys((Size(FEW, rows), Size(FEW, given.rows), given))
    for size in sizes:
        for dtype in (jnp.float64, jnp.float32):
            yield dtype, size


def _runs(trial: Trial, few: Size) -> bool:
    """Whether a model runs fewer steps too. It may be made for one number of steps."""
    if few.steps >= trial.size.steps:
        return False
    try:
        with jax.enable_x64(jnp.dtype(trial.dtype) == jnp.float64):
            _narrowest(replace(trial, size=few))
    except Exception:
        return False
    return True


def _narrowest(trial: Trial) -> Any:
    """The narrowest floating dtype that a run computes in."""
    arguments = (trial.params(), trial.start(trial.size), trial.inputs(trial.size))
    arrays = Arrays(*(cast(tree, trial.dtype) for tree in arguments))
    jaxpr, (_, ys) = jax.make_jaxpr(lambda arrays: trial.model.run(*arrays), return_shape=True)(arrays)
    _check_time(trial, ys)
    dtypes = {_real(dtype) for dtype in _floating(jaxpr.jaxpr)} | {jnp.dtype(trial.dtype)}
    return min(dtypes, key=lambda dtype: (-float(jnp.finfo(dtype).eps), str(dtype)))


class _ShapeError(ValueError):
    """Outputs that are no sequence. Other sizes do not change it."""


def _check_time(trial: Trial, ys: Any) -> None:
    if not all(leaf.shape[:1] == trial.size[:1] for leaf in jax.tree.leaves(ys)):
        raise _ShapeError(
            f"check: a {trial.model.kind} must return outputs with a time axis, (T, N, ...); got {describe_tree(ys)} "
            f"for {trial.size.steps} steps. Return the outputs of all steps, not a carry or a loss."
        )


def _keeps_its_types(trial: Trial) -> bool:
    """Whether a step keeps its carry, or has none."""
    try:
        return (
            trial.model.lacks("carry") is not None
            or keeps_its_types(trial, trial.size, dtype=trial.dtype).problem is None
        )
    except Exception:  # The step itself fails; the error of the run says how.
        return True


def check_finite(trial: Trial) -> None:
    """Reject results that are not finite: nothing can be compared to them.

    Raises:
        ValueError: if a result of a run or a gradient is not finite.
    """
    with jax.enable_x64(jnp.dtype(trial.dtype) == jnp.float64):
        results = trial.run(trial.arrays(trial.size))
    for named, of in ((results.outputs, ""), (results.gradients, "the gradient of ")):
        for name, leaf in named.items():
            value = wide(leaf)
            if value.dtype.kind in "fc" and not np.isfinite(value).all():
                index = tuple(map(int, np.argwhere(~np.isfinite(value))[0]))
                raise ValueError(
                    f"check: the model's results must be finite for random inputs; got {value[index].item():.3g} in "
                    f"{of}{name}{place(name, index)}. Pass parameters, and xs in a range, for which they are, "
                    f"or fewer steps than {trial.size.steps}, steps=8."
                )


def _real(dtype: Any) -> Any:
    return jnp.dtype(jnp.finfo(dtype).dtype)


def _floating(jaxpr: Any) -> Iterator[Any]:
    """The floating dtypes of all equations' results, also of inner jaxprs."""
    for equation in all_equations(jaxpr):
        for value in equation.outvars:
            dtype = getattr(value.aval, "dtype", None)
            if dtype is not None and jnp.issubdtype(dtype, jnp.inexact):
                yield dtype
