"""The check of rounding."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.checking.checks import Check, DoesNotApplyError, Part
from rnnscan.checking.compare import Finding, wide
from rnnscan.checking.leaves import by_path, cast
from rnnscan.checking.loop import Loop, loop
from rnnscan.checking.model import Model
from rnnscan.checking.trial import Arrays, Results, Size, Trial


# How much larger the error of float32 may be than that of the loop over steps, whose own error is at least one
# rounding of the largest value.
FACTOR = 8


def _reason(trial: Trial) -> str | None:
    if jnp.dtype(trial.dtype) != jnp.float64 or trial.narrow is not None:
        return "a model that does not compute in float64, which would be the reference"
    return trial.model.lacks("carry") or trial.model.backward


def _parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    yield "the run", partial(is_as_precise_as_the_loop, title="the run", form=None)
    for name, form in trial.forms.items():
        title = f"the form {name!r}"
        yield title, partial(is_as_precise_as_the_loop, title=title, form=form)


def is_as_precise_as_the_loop(trial: Trial, size: Size, *, title: str, form: Model | None) -> Finding:
    """The error of float32 against float64, of a run and of the loop over its steps."""
    arrays, cotangents = trial.arrays(size), trial.cotangents(trial.arrays(size))
    for name, leaf in (by_path(arrays.params, "params") | by_path(arrays.carry, "carry")).items():
        _check_range(name, leaf)
    single = Arrays(*(cast(tree, jnp.float32) for tree in arrays))
    of_single = cast(cotangents, jnp.float32)
    exact = _exact(trial, size, single, of_single)
    with jax.enable_x64(False):
        by_steps: Loop = trial.remember(("float32", size), lambda: loop(trial, single, of_single))
        results = trial.run(single, of_single, model=form)
    worst = 0.0
    for kind in ("outputs", "gradients"):
        for name, reference_value in getattr(exact, kind).items():
            if np.asarray(reference_value).dtype.kind not in "fc":
                continue
            _check_range(name, reference_value)
            errors = [_error(getattr(each, kind)[name], reference_value) for each in (results, by_steps.results)]
            ratio = errors[0] / max(errors[1], float(np.finfo(np.float32).eps))
            if not ratio <= FACTOR:
                of = "the gradient of " if kind == "gradients" else ""
                return Finding(
                    ratio,
                    f"the error of {of}{name} in float32 is {errors[0]:.2g} in {title}, and {errors[1]:.2g} step by "
                    f"step; at most {FACTOR} times that is rounding",
                )
            worst = max(worst, ratio)
    return Finding(worst)


def _check_range(name: str, value: Any) -> None:
    """Reject a value that float32 does not have: one that grows at each step has no precision to compare."""
    value = wide(value)
    if value.dtype.kind in "fc" and np.abs(value).max(initial=0) > np.finfo(np.float32).max:
        raise DoesNotApplyError(f"values beyond the range of float32, of {name}; pass fewer `steps`")


def _exact(trial: Trial, size: Size, single: Arrays, cotangents: dict[str, Any]) -> Results:
    """The loop in float64 from arguments that float32 has."""

    def make() -> Results:
        wide_arrays = Arrays(*(cast(tree, jnp.float64) for tree in single))
        return loop(trial, wide_arrays, cast(cotangents, jnp.float64)).results

    found: Results = trial.remember(("exact", size), make)
    return found


def _error(actual: Any, expected: Any) -> float:
    expected = wide(expected)
    scale = max(float(np.abs(expected).max(initial=0)), float(np.finfo(np.float32).tiny))
    return float(np.nan_to_num(np.abs(wide(actual) - expected), nan=np.inf).max(initial=0)) / scale


PRECISION = Check(
    "precision",
    f"float32 errs at most {FACTOR} times as much as step by step.",
    _reason,
    _parts,
    measure="largest error {:.1g} times that of the steps",
)
