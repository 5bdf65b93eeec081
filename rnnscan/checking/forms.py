"""Checks of forms: memory choices, Newton's method, exports and the user's own equal the plain run."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan.checking.checks import Check, DoesNotApplyError, Part, needs
from rnnscan.checking.compare import Finding, close
from rnnscan.checking.leaves import cast
from rnnscan.checking.model import Model
from rnnscan.checking.steps import compare
from rnnscan.checking.trial import Arrays, Results, Size, Trial, outputs_by_path
from rnnscan.export.load import load
from rnnscan.export.save import save
from rnnscan.memory import Memory
from rnnscan.newton import Newton


def _choices(steps: int) -> dict[str, dict[str, Any]]:
    """Memory choices by name. The steps are no multiple of a segment or a chunk."""
    few = next(each for each in count(3) if steps % each)
    return {
        "the default choice": {},
        "Memory(recompute='all')": {"memory": Memory(recompute="all")},
        f"Memory(segment={few})": {"memory": Memory(segment=few)},
        f"Memory(chunk={few})": {"memory": Memory(chunk=few)},
        "memory=None": {"memory": None},
    }


def _memory_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    for name, options in _choices(trial.size.steps).items():
        yield name, partial(equals_the_plain_run, name=name, options=options)


def _plain(trial: Trial, size: Size) -> Results:
    """One `lax.scan`, with plain autodiff."""
    options: dict[str, Any] = {"memory": None, "engine": "lax"} if _is_own(trial.model) else {}
    return trial.run(trial.arrays(size), **options)


def _is_own(model: Model) -> bool:
    return {"memory", "engine"} <= model.options


def equals_the_plain_run(trial: Trial, size: Size, *, name: str, options: dict[str, Any]) -> Finding:
    """A memory choice, and one `lax.scan` with plain autodiff."""
    finding = compare(trial, trial.run(trial.arrays(size), **options), _plain(trial, size), "in one plain lax.scan")
    return replace(finding, problem=finding.problem and f"with {name}, {finding.problem}")


def _parallel_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    yield "Newton()", newton_equals_the_plain_run


def newton_equals_the_plain_run(trial: Trial, size: Size) -> Finding:
    """Newton's method over all steps at once, and one `lax.scan`."""
    try:
        results = trial.run(trial.arrays(size), parallel=Newton())
    except ValueError as error:
        if "parallel" not in str(error):
            raise
        raise DoesNotApplyError(_sentence(error)) from error
    finding = compare(trial, results, _plain(trial, size), "in one plain lax.scan")
    return replace(finding, problem=finding.problem and f"with parallel=Newton(), {finding.problem}")


def _sentence(error: Exception) -> str:
    """The second sentence of a message of the library: what was given."""
    first = str(error).splitlines()[0]
    return first.split("; got ")[-1].split(". ")[0].removesuffix(".")


def _exported(trial: Trial) -> str | None:
    missing = [module for module in ("safetensors", "flatbuffers") if find_spec(module) is None]
    if missing:
        return f"an export, which needs the extra `export`: there is no {missing[0]}"
    if trial.model.kind == "module":
        return "a module of Flax, which rnnscan.export does not take"
    return None


def _export_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    yield "export", an_export_equals_the_run


def an_export_equals_the_run(trial: Trial, size: Size) -> Finding:
    """The values of an export that was saved and loaded, and those of a run."""
    model = trial.model
    arrays = trial.arrays(size)
    params, carry, xs = (cast(tree, jnp.float32) for tree in arrays)
    cotangents = cast(trial.cotangents(arrays), jnp.float32)
    with jax.enable_x64(False):
        expected = trial.run(Arrays(params, carry, xs), cotangents)
        is_function = model.kind == "function"

        def run(params: Any, *inputs: Any) -> Any:
            carry, xs = ((), inputs[0]) if is_function else inputs
            results = model.run(params, carry, xs)
            return results[1] if is_function else results

        inputs: list[Any] = [xs] if is_function else [carry, xs]
        with tempfile.TemporaryDirectory() as folder:
            try:
                save(Path(folder) / "export", run, params, inputs, platforms=["cpu"], dynamic=())
            except (TypeError, ValueError) as error:
                raise DoesNotApplyError(f"a model that cannot be exported: {str(error).splitlines()[0]}") from error
            loaded: Any = load(Path(folder) / "export").predict(*inputs)
    carry, ys = ((), loaded) if is_function else loaded
    return close(outputs_by_path(carry, ys), expected.outputs, 1e-4, "before the export")


def _form_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    for name in trial.forms:
        yield name, partial(equals_the_model, name=name)


def _forms(trial: Trial) -> str | None:
    return None if trial.forms else "a call without `forms`"


def equals_the_model(trial: Trial, size: Size, *, name: str) -> Finding:
    """A form of the user's, and the model."""
    arrays = trial.arrays(size)
    than = "in the model" if trial.model.kind == "function" else "in the scan of its steps"
    finding = compare(trial, trial.run(arrays, model=trial.forms[name]), trial.run(arrays), than)
    return replace(finding, problem=finding.problem and f"in the form {name!r}, {finding.problem}")


MEMORY = Check("memory", "Every memory choice equals one plain lax.scan.", needs("memory", "engine"), _memory_parts)
PARALLEL = Check("parallel", "Newton's method equals one plain lax.scan.", needs("parallel"), _parallel_parts)
EXPORT = Check("export", "A saved and loaded export equals the run.", _exported, _export_parts, is_long=False)
FORMS = Check("forms", "Other forms of the model equal it.", _forms, _form_parts)
