"""check(): is a recurrent model what it claims?"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rnnscan import _checks as checks
from rnnscan.checking.adapters import as_model, form_of
from rnnscan.checking.arguments import check_forms, check_options, check_results_of_forms, chosen_checks
from rnnscan.checking.registry import CHECKS
from rnnscan.checking.report import CheckReport
from rnnscan.checking.run import outcome_of
from rnnscan.checking.setting import check_finite, trial_of
from rnnscan.randomness import without_key_on_purpose


def check(
    model: Any,
    *arguments: Any,
    carry: Any = None,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] | None = None,
    steps: int | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    batched: bool | None = None,
    time_major: bool | None = None,
    forms: Mapping[str, Callable[..., Any]] | None = None,
) -> CheckReport:
    """Check that a recurrent model is what it claims, with random inputs, in values and gradients.

    | call | model |
    | --- | --- |
    | `check(cell, params, carry, xs)` | a cell, or any function `(params, carry, x) -> (carry, y)` |
    | `check(net, params, xs)` | a net |
    | `check(function, params, xs)` | a function `(params, xs) -> ys`, such as one with `lax.scan` in it |
    | `check(module, variables, xs)` | a module of `flax.linen` |
    | `check(module, xs)` | a module of `flax.nnx` |

    A function with an argument `reset`, `document_ids` or `segment_ids` takes packed documents, and one with
    `seq_lengths` or `mask` takes padding: `(T, N)`, or `(N,)` for `seq_lengths`.

    The checks, in their order. Each runs where it applies.

    | check | what holds |
    | --- | --- |
    | types | a step keeps the carry's structure, shapes and dtypes, in bfloat16 too |
    | steps | a run equals a Python loop over its steps |
    | future | no output reads a later input |
    | rows | no row reads another row |
    | padding | padding reaches no value and no gradient, with NaN and inf in it too |
    | reverse | a reversed run reverses each row by its length |
    | documents | no packed document reads another, forward or backward, with NaN and inf in it too |
    | windows | windows with the carry handed on equal the whole, with resets and with a key |
    | memory | recomputed, segmented and chunked runs equal one plain `lax.scan` |
    | parallel | `rnnscan.Newton` equals it |
    | export | a saved and loaded export equals the run (extra `export`) |
    | forms | the forms that you pass equal the model |
    | transformations | `jit`, `vmap` and `jvp` agree with the run and its gradient |
    | finite_differences | gradients are the finite differences of values, in float64 |
    | precision | float32 is at most 8 times as far from float64 as the loop over steps is |
    | randomness | without a key nothing is drawn; with one, each step draws its own mask |

    It runs as many steps as `xs` has, but at least 8 and at most 256, of 2 or 3 rows, in float64 where the model allows
    it. A fault that needs more steps is not found: give a chunked form several chunks. Faults of types, export,
    transformations, finite_differences and randomness show in few steps, so these run 8. A failed check then runs with
    fewer rows, steps and, if the model has `init`, features, to find the smallest input that shows the fault.

    Args:
        model: what to check.
        arguments: the model's arguments, as in the table. Leaves of `xs` are time-major, `(T, N, ...)`, but those of a
            Flax module as its call takes them. Parameters and carries are arrays, or `jax.ShapeDtypeStruct` for
            random ones. Of `xs` only types, ranges and the number of steps matter. The carry may be None for a cell
            with `initial_carry`.
        carry: the carry of a net, by name. Only its types matter.
        only: the name of a check, or several: run these only.
        skip: the name of a check, or several that are not run, such as "finite_differences" of a model with
            `stop_gradient` on purpose.
        steps: the number of steps, two or more; None: as many as `xs` has, from 8 to 256.
        seed: the seed of the random inputs.
        tolerance: the largest difference of results that must be equal to rounding, relative to the largest value of
            an array or to 1. None: 1e-9 in float64, 2e-4 in float32.
        batched: whether leaves of `xs` have a batch axis. None: as the cell says; else if all have three axes or more,
            or the carry has as many rows as they.
        time_major: whether the inputs of a Flax module are time-major; None: as the module says, else batch-major.
        forms: other functions that must equal the model, by a name for each: of a cell or net
            `(params, carry, xs) -> (carry, ys)`, such as a chunked form; of a function `(params, xs) -> ys`. Give
            `xs`, or `steps`, of several chunks.

    Returns:
        A report. `report.ok` says whether all checks hold, `report.failed` names those that do not, and
        `report.raise_if_failed()` is for tests.

    Raises:
        TypeError: if the arguments do not fit the model, or an option or a result of a form is of another kind.
        ValueError: if a check has another name, a number is out of range, or the model's results are not finite.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.GRU(4), jnp.ones((8, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> report = rs.check(cell, params, cell.initial_carry(xs[0]), xs, only=["future", "rows"])
        >>> report.ok
        True
        >>> def normalized(params, xs):  # over the rows
        ...     return xs / jnp.linalg.norm(xs, axis=1, keepdims=True)
        >>> rs.check(normalized, None, xs, only=["future", "rows"]).failed
        ('rows',)
    """
    checks.check_has_values("check", arguments, carry)
    names = chosen_checks(only, skip)
    check_options(steps=steps, seed=seed, tolerance=tolerance, batched=batched, time_major=time_major)
    forms = {} if forms is None else check_forms(forms)
    adapted, given = as_model(model, arguments, carry, time_major)
    with without_key_on_purpose():
        trial = trial_of(adapted, given, steps=steps, seed=seed, tolerance=tolerance, batched=batched)
        trial = replace(trial, forms={name: form_of(adapted, name, form) for name, form in forms.items()})
        check_results_of_forms(trial)
        if not trial.broken and names != ["types"]:
            check_finite(trial)
        outcomes = tuple(outcome_of(CHECKS[name], trial) for name in names)
    return CheckReport(adapted.title, trial.setting, outcomes)
