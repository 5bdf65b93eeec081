"""Stop a training at the first step that is not finite, and keep what reproduces it."""

from typing import Any

import jax

from rnnscan.train.run_directory import RunDirectory
from rnnscan.train.state import TrainState


def check_can_search(step: Any) -> None:
    """Reject steps of which nobody can say which value is not finite."""
    if not hasattr(step, "first_nonfinite"):
        raise TypeError(
            f"fit: `check_finite` needs a step with a method `first_nonfinite(state, batch)`; got {step!r}. Make it "
            "with make_step, or leave `check_finite` out."
        )
    if jax.process_count() > 1:
        raise ValueError(
            f"fit: `check_finite` needs a single process; got {jax.process_count()}. Leave it out, save the state, and "
            "run the step again in one process."
        )


def check_not_skipped(step: Any, state: TrainState, batch: Any, run: RunDirectory | None) -> None:
    """Raise a FloatingPointError if the last step was skipped because a value is not finite.

    Args:
        step: the step.
        state: the state after it.
        batch: its batch.
        run: the directory for the state before it and the batch; None: write nothing.
    """
    if not int(state.skipped_in_a_row):
        return
    # A step that is skipped changes nothing but these numbers.
    before = state._replace(step=state.step - 1, skipped=state.skipped - 1, skipped_in_a_row=state.skipped_in_a_row - 1)
    report = step.first_nonfinite(before, batch)
    text = f"update {int(before.step)} of the training is not finite. {report or 'Its operations alone are.'}"
    if run is not None:
        run.save_failure(before, batch, text)
        text += f"\nWhat reproduces it, and how to load it: {run.failure / 'report.txt'}"
    raise FloatingPointError(f"fit: {text}")
