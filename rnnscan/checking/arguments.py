"""Checks of the arguments of check(), before anything runs."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import describe_tree, describe_value, in_words, is_count, listing, nearest
from rnnscan.checking.leaves import by_path, types_of
from rnnscan.checking.model import Model
from rnnscan.checking.registry import CHECKS
from rnnscan.checking.trial import Trial


def chosen_checks(only: Any, skip: Any) -> list[str]:
    """The names of the checks to run, in their order.

    Raises:
        TypeError: if `only` or `skip` is neither a name nor names.
        ValueError: if a check has another name.
    """
    chosen = [*CHECKS] if only is None else _names("only", only)
    skipped = [] if skip is None else _names("skip", skip)
    return [name for name in CHECKS if name in chosen and name not in skipped]


def _names(argument: str, names: Any) -> list[str]:
    if not isinstance(names, str | Iterable):
        raise TypeError(
            f"check: `{argument}` must be the name of a check, or several: {listing(CHECKS)}; got "
            f"{describe_value(names)}. Leave it out for all."
        )
    listed = [names] if isinstance(names, str) else [*names]
    for name in listed:
        if name not in CHECKS:
            raise ValueError(
                f"check: `{argument}` must name checks: {listing(CHECKS)}; got {name!r}.{nearest(str(name), CHECKS)}"
            )
    return listed


def check_options(*, steps: Any, seed: Any, tolerance: Any, batched: Any, time_major: Any) -> None:
    """Reject options that make no trial.

    Raises:
        TypeError: if one is of another kind.
        ValueError: if a number is out of range.
    """
    if steps is not None:
        _check_count("steps", steps, 2, "Leave it out for as many as xs has.")
    _check_count("seed", seed, 0, "Write seed=0.")
    for argument, value in (("batched", batched), ("time_major", time_major)):
        if value is not None and not isinstance(value, bool | np.bool_):
            raise TypeError(
                f"check: `{argument}` must be True, False or None; got {describe_value(value)}. Leave it out for what "
                "the model and xs say."
            )
    if tolerance is None:
        return
    advice = "Leave it out for that of the dtype."
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | np.number):
        raise TypeError(f"check: `tolerance` must be a number, such as 1e-6; got {describe_value(tolerance)}. {advice}")
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"check: `tolerance` must be finite and not negative; got {tolerance!r}. {advice}")


def _check_count(argument: str, value: Any, least: int, advice: str) -> None:
    if is_count(value, least):
        return
    kind = ValueError if is_count(value, value) else TypeError
    raise kind(f"check: `{argument}` must be an integer of at least {least}; got {describe_value(value)}. {advice}")


def check_forms(forms: Any) -> Mapping[str, Callable[..., Any]]:
    """The forms, if they are functions by a name for each.

    Raises:
        TypeError: if they are not.
    """
    call = 'forms={"chunked": chunked}'
    if not isinstance(forms, Mapping):
        raise TypeError(f"check: `forms` must be functions by a name for each, {call}; got {describe_value(forms)}.")
    for name, form in forms.items():
        if not isinstance(name, str):
            raise TypeError(f"check: the names of `forms` must be strings, {call}; got {describe_value(name)}.")
        if not callable(form):
            raise TypeError(
                f"check: each of `forms` must be a function of the model's arguments, {call}; got "
                f"{describe_value(form)} for {name!r}."
            )
    return forms


def check_takes(what: str, function: Callable[..., Any], count: int, call: str, named: Iterable[str] = ()) -> None:
    """Reject a function that does not take the arguments of a call.

    Args:
        what: the function, for the message.
        function: the function.
        count: the number of its arguments by position.
        call: the call, `(params, xs) -> ys`.
        named: its arguments by name.

    Raises:
        TypeError: if it takes others.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count, **dict.fromkeys(named))
    except TypeError as error:
        raise TypeError(
            f"check: {what} must be a function {call}; got {in_words(function)}{signature}. Bind other arguments by "
            "functools.partial."
        ) from error


def check_results_of_forms(trial: Trial) -> None:
    """Reject forms whose results have another structure than the model's.

    Raises:
        TypeError: if they have.
    """
    if trial.broken or not trial.forms:
        return
    with jax.enable_x64(jnp.dtype(trial.dtype) == jnp.float64):
        arrays = types_of(trial.arrays(trial.size))
        expected = _result_of(trial.model, arrays)
        for name, form in trial.forms.items():
            try:
                result = _result_of(form, arrays)
            except Exception:  # The report says how it fails.
                continue
            if _places(result, trial.model) != _places(expected, trial.model):
                raise TypeError(
                    f"check: the form {name!r} must return what the model returns, {_returned(trial.model)}: "
                    f"{describe_tree(expected)}; got {describe_tree(result)}."
                )


def _returned(model: Model) -> str:
    return "ys" if model.kind == "function" else "(carry, ys)"


def _result_of(model: Model, arrays: Any) -> Any:
    """The types of what a model or a form returns. That of a function has an empty carry besides, which is left out."""
    result = jax.eval_shape(lambda arrays: model.run(*arrays), arrays)
    return result[1] if model.kind == "function" else result


def _places(result: Any, model: Model) -> Any:
    if model.kind == "function":
        return [*by_path(result, "y")]
    if not isinstance(result, tuple | list) or len(result) != 2:
        return None
    return [*by_path(result[0], "carry"), *by_path(result[1], "y")]
