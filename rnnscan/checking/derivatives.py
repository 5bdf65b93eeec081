"""Checks of transformations and derivatives."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan.checking.checks import Check, DoesNotApplyError, Part, always, parts
from rnnscan.checking.compare import Finding, found
from rnnscan.checking.leaves import by_path, is_inexact, random_like
from rnnscan.checking.steps import compare
from rnnscan.checking.trial import Arrays, Results, Size, Trial, outputs_by_path


def _as_it_is(program: Callable[..., Any]) -> Callable[..., Any]:
    return program


def _mapped(program: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(jax.vmap(program, in_axes=(0, None, 0)))


def jit_changes_nothing(trial: Trial, size: Size) -> Finding:
    """A run outside of `jax.jit`, and within."""
    arrays = trial.arrays(size)
    return compare(trial, trial.run(arrays, wrap=_as_it_is), trial.run(arrays), "under jax.jit")


def vmap_is_a_loop(trial: Trial, size: Size) -> Finding:
    """Two runs under `jax.vmap`, and each of them."""
    first = trial.arrays(size)
    # All arguments differ, the parameters too.
    second = Arrays(*(_slightly_other(trial, tree) for tree in first))
    cotangents = trial.cotangents(first)
    both = jax.tree.map(lambda *leaves: _stacked(*leaves), first, second)
    mapped = trial.run(both, {name: np.stack([v, v]) for name, v in cotangents.items()}, wrap=_mapped)
    findings = []
    for number, arrays in enumerate((first, second)):
        outputs = {name: value[number] for name, value in mapped.outputs.items()}
        gradients = {name: value[number] for name, value in mapped.gradients.items()}
        alone = trial.run(arrays, cotangents)
        findings.append(compare(trial, Results(outputs, gradients, None), alone, "without jax.vmap"))
    return found(*findings)


def _slightly_other(trial: Trial, tree: Any) -> Any:
    random = trial.random("vmap")
    return jax.tree.map(
        lambda leaf: leaf * (1 + 0.01 * random_like(random, leaf, leaf.shape)) if is_inexact(leaf) else leaf, tree
    )


def _stacked(first: Any, second: Any) -> Any:
    stack = np.stack if isinstance(first, np.ndarray) else jnp.stack
    value: Any = stack([first, second])
    return value.astype(first.dtype) if isinstance(first, np.ndarray) else value


def jvp_is_the_transpose_of_vjp(trial: Trial, size: Size) -> Finding:
    """The derivative in a random direction, forward and backward."""
    arrays = trial.arrays(size)
    cotangents = trial.cotangents(arrays)
    directions = _directions(trial, arrays)
    leaves, structure = jax.tree.flatten(arrays)
    varying = [is_inexact(leaf) for leaf in leaves]

    def run(floats: list[Any]) -> dict[str, Any]:
        rest = iter(floats)
        merged = [next(rest) if varies else leaf for varies, leaf in zip(varying, leaves, strict=True)]
        outputs = outputs_by_path(*trial.model.run(*jax.tree.unflatten(structure, merged)))
        return {name: leaf for name, leaf in outputs.items() if name in cotangents}

    floats = [leaf for varies, leaf in zip(varying, leaves, strict=True) if varies]
    try:
        _, tangents = jax.jit(lambda floats, tangents: jax.jvp(run, (floats,), (tangents,)))(
            floats, list(directions.values())
        )
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise DoesNotApplyError("a model with a jax.custom_vjp, which has no forward mode") from error
    forward = sum(_product(cotangents[name], tangents[name]) for name in tangents)
    gradients = trial.run(arrays, cotangents).gradients
    backward = sum(_product(directions[name], gradients[name]) for name in gradients)
    scale = sum(float(np.abs(directions[name] * gradients[name]).sum()) for name in gradients)
    difference = abs(forward - backward) / max(1.0, scale)
    if not difference <= trial.tolerance:
        return Finding(
            difference, f"the derivative in one direction is {forward:.6g} by jax.jvp, and {backward:.6g} by jax.vjp"
        )
    return Finding(difference)


def _directions(trial: Trial, arrays: Arrays) -> dict[str, Any]:
    """A random direction for each argument with a gradient, by place, in the order of `gradient_names`."""
    places = by_path(arrays.params, "params") | by_path(arrays.carry, "carry") | by_path(arrays.xs, "xs")
    return {
        name: random_like(trial.random("direction", name), leaf, leaf.shape)
        for name, leaf in places.items()
        if is_inexact(leaf)
    }


def _product(first: Any, second: Any) -> float:
    """The real part of the bilinear product, JAX's pairing of tangents and cotangents."""
    return float((np.asarray(first) * np.asarray(second)).sum().real)


def _in_float64(trial: Trial) -> str | None:
    if trial.narrow is not None or jnp.dtype(trial.dtype) != jnp.float64:
        narrow = jnp.dtype(trial.narrow if trial.narrow is not None else trial.dtype).name
        return f"a model that computes in {narrow} where its inputs are float64: differences would be rounding"
    return None


# Steps of central differences. Where two of them disagree, the model has a kink between.
_STEPS = (1e-5, 2e-6)
_TOLERANCE = 1e-5


def _difference_parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    yield "finite differences", gradients_are_finite_differences


def gradients_are_finite_differences(trial: Trial, size: Size) -> Finding:
    """The gradient of a random sum of all outputs in random directions, one argument at a time."""
    arrays = trial.arrays(size)
    cotangents = trial.cotangents(arrays)
    gradients = trial.run(arrays, cotangents).gradients
    total = max((float(np.abs(value).max(initial=0)) for value in gradients.values()), default=0.0)
    worst = 0.0
    for name, gradient in gradients.items():
        for attempt in range(3):
            direction = random_like(trial.random("difference", name, attempt), gradient, gradient.shape)
            direction = direction / max(1.0, float(np.sqrt((np.abs(direction) ** 2).sum())))
            slopes = [_slope(trial, arrays, cotangents, name, direction, step) for step in _STEPS]
            expected = _product(gradient, direction)
            scale = max(abs(expected), abs(slopes[0]), 1e-3 * total, 1e-3)
            error = min(abs(slope - expected) for slope in slopes) / scale
            if error <= _TOLERANCE:
                worst = max(worst, error)
                break
            has_kink = abs(slopes[0] - slopes[1]) > 0.1 * error * scale
            if not has_kink or attempt == 2:
                return Finding(
                    error,
                    f"the derivative for {name} in one direction is {slopes[0]:.6g} by finite differences, and "
                    f"{expected:.6g} by its gradient",
                )
    return Finding(worst)


def _slope(trial: Trial, arrays: Arrays, cotangents: dict[str, Any], name: str, direction: Any, step: float) -> float:
    """The central difference of the sum of outputs times cotangents."""
    sums = []
    for sign in (1, -1):
        moved = _moved(arrays, name, sign * step * direction)
        outputs = trial.run(moved, cotangents).outputs
        sums.append({key: np.asarray(outputs[key]) for key in cotangents})
    # Differences before the sum, so that large outputs cancel exactly.
    return sum(_product(cotangents[key], sums[0][key] - sums[1][key]) for key in cotangents) / (2 * step)


def _moved(arrays: Arrays, name: str, by: Any) -> Arrays:
    def move(tree: Any, root: str) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(
            structure,
            [leaf + by if place == name else leaf for place, leaf in zip(by_path(tree, root), leaves, strict=True)],
        )

    return Arrays(move(arrays.params, "params"), move(arrays.carry, "carry"), move(arrays.xs, "xs"))


TRANSFORMATIONS = Check(
    "transformations",
    "jit, vmap and jvp agree with the run and its gradient.",
    always,
    parts(jit=jit_changes_nothing, jvp=jvp_is_the_transpose_of_vjp, vmap=vmap_is_a_loop),
    is_long=False,
)
FINITE_DIFFERENCES = Check(
    "finite_differences",
    "Gradients are the finite differences of values.",
    _in_float64,
    _difference_parts,
    is_long=False,
)
