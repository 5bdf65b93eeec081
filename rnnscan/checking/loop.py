"""The reference of every scan: a Python loop over the steps, and its backward pass."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from rnnscan.checking.model import Model
from rnnscan.checking.trial import Arrays, Results, Trial


class Loop(NamedTuple):
    """A loop over steps.

    Attributes:
        results: its outputs and gradients.
        carries: the carry before each step and after the last.
    """

    results: Results
    carries: list[Any]


def one_step(trial: Trial) -> Model:
    """The model of sequences of one step: the cell alone, without `scan`, or a run of length 1."""

    def make() -> Model:
        step = trial.model.step
        if step is None:
            return trial.model

        def run(params: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
            carry, y = step(params, carry, jax.tree.map(lambda leaf: leaf[0], xs))
            return carry, jax.tree.map(lambda leaf: leaf[None], y)

        return replace(trial.model, run=run)

    model: Model = trial.remember("one step", make)
    return model


def loop(trial: Trial, arrays: Arrays, cotangents: dict[str, Any]) -> Loop:
    """Run all steps forward in a Python loop, then backward; the gradients of the parameters are summed."""
    model = one_step(trial)
    steps = len(jax.tree.leaves(arrays.xs)[0])
    carries, outputs = [arrays.carry], []
    for number in range(steps):
        at_step = Arrays(arrays.params, carries[-1], _window(arrays.xs, number))
        results = trial.run(at_step, _of_step(cotangents, number), model=model)
        carries.append(results.carry)
        outputs.append(results.outputs)
    of_carry = {name: value for name, value in cotangents.items() if name.startswith("carry")}
    gradients: dict[str, Any] = {}
    of_inputs: list[dict[str, Any]] = []
    for number in reversed(range(steps)):
        at_step = Arrays(arrays.params, carries[number], _window(arrays.xs, number))
        results = trial.run(at_step, {**_of_step(cotangents, number), **of_carry}, model=model)
        of_carry = {name: value for name, value in results.gradients.items() if name.startswith("carry")}
        of_inputs.append({name: value for name, value in results.gradients.items() if name.startswith("xs")})
        for name, value in results.gradients.items():
            if name.startswith("params"):
                gradients[name] = value + gradients[name] if name in gradients else value
    gradients |= of_carry
    gradients |= {name: np.concatenate([each[name] for each in of_inputs[::-1]]) for name in of_inputs[0]}
    last = {name: value for name, value in outputs[-1].items() if name.startswith("carry")}
    stacked = {name: np.concatenate([each[name] for each in outputs]) for name in outputs[0] if name not in last}
    return Loop(Results(last | stacked, gradients, carries[-1]), carries)


def reference(trial: Trial, size: Any) -> Loop:
    """The loop over the steps of the trial's arguments."""
    arrays = trial.arrays(size)
    found: Loop = trial.remember(("loop", size), lambda: loop(trial, arrays, trial.cotangents(arrays)))
    return found


def _window(xs: Any, number: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[number : number + 1], xs)


def _of_step(cotangents: dict[str, Any], number: int) -> dict[str, Any]:
    """The cotangents of one step's outputs, and zeros for those of its carry."""
    return {
        name: value[number : number + 1] if name.startswith("y") else np.zeros_like(value)
        for name, value in cotangents.items()
    }
