"""The training loop: steps with batches, metrics, evaluations, checkpoints, and a clean end."""

import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from rnnscan.train.batches import Batches, batches_from
from rnnscan.train.metrics import Metrics
from rnnscan.train.run_directory import RunDirectory
from rnnscan.train.signals import noted
from rnnscan.train.state import TrainState
from rnnscan.train.step import Step


# Within 80 columns. What a narrower terminal cuts off is at the end.
PROGRESS = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix} [{elapsed}<{remaining}]"


class Stopped(SystemExit):
    """Training was stopped by SIGTERM, and the state was saved first. Uncaught it ends the process with code 143.

    Attributes:
        state: the state after the last step.
    """

    def __init__(self, state: TrainState) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.state = state


def fit(
    step: Step,
    state: TrainState,
    batches: Batches,
    *,
    steps: int,
    carry_at: Callable[[int, Any], Any] | None = None,
    evaluate: Callable[[TrainState], Mapping[str, Any]] | None = None,
    evaluate_every: int | None = None,
    run: RunDirectory | None = None,
    checkpoint_every: int | None = None,
    most_skipped: int = 5,
    progress: bool = True,
    describe: Callable[[Metrics, float], str] | None = None,
) -> TrainState:
    """Train until a number of steps has been made, with a progress bar.

    Started again with `run.restore(state)` for the state, after a kill at any moment, it ends with the same parameters,
    bit for bit: the batch of a step and its key follow from the step's number, and all else is in the checkpoint.

    Args:
        step: what `make_step` has made, or another function `step(state, batch) -> (state, metrics)`, where the metrics
            are scalars by their names, with a `"loss"`.
        state: where to begin or to go on. It stays as it is.
        batches: a function `batch_at(step)`, what can be indexed, or an iterable; see `batches_from`. A batch is any
            pytree of arrays. Steps are counted from 0 here and in `carry_at`.
        steps: the number of steps made in all, those before `state` among them.
        carry_at: `carry_at(step, carry)` gives the carry that a step begins with, of that which the step before it
            left. None: that one. To begin each epoch anew:
            `lambda step, carry: initial if step % steps_an_epoch == 0 else carry`.
        evaluate: `evaluate(state)` gives numbers by their names, which are written beside the step's metrics. The next
            step uses the state up, so copy what is to stay.
        evaluate_every: steps between two evaluations; the last step is always evaluated.
        run: where metrics and checkpoints are written; None: nowhere. With one, SIGTERM lets the running step end,
            saves, and raises `Stopped`. (In the main thread; other threads get no signals.)
        checkpoint_every: steps between two checkpoints; the last step is always saved.
        most_skipped: how many steps in a row may be skipped because something was not finite.
        progress: whether there is a progress bar.
        describe: `describe(metrics, steps_per_second)` gives the words in the progress bar; None: the loss.

    Returns:
        The state after the last step.

    Raises:
        FloatingPointError: if more than `most_skipped` steps in a row were skipped.
        Stopped: after SIGTERM.
        TypeError: if `batches` is nothing to take batches from.
        ValueError: if a number of steps is below 1, the run's directory is ahead of the state, or there is no batch.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from rnnscan.train import begin, make_step
        >>> def loss(params, carry, batch, key):
        ...     return jnp.sum((params["w"] - batch) ** 2), carry
        >>> optimizer = optax.adam(0.1)
        >>> state = begin({"w": jnp.zeros(2)}, optimizer)
        >>> batches = lambda step: jnp.array([1.0, 2.0])
        >>> state = fit(make_step(loss, optimizer, clip_norm=1.0), state, batches, steps=200, progress=False)
        >>> state.params["w"].round(2).tolist()
        [1.0, 2.0]
    """
    _check_run(run)
    _check_counts(steps, evaluate_every, checkpoint_every, run, most_skipped)
    first = int(state.step)
    if run is not None:
        run.check_not_ahead(first)
    if first >= steps:
        return state
    # A step uses its state up. The one given stays the caller's.
    state = jax.tree.map(jnp.copy, state)
    with (
        tqdm(
            total=steps,
            initial=first,
            unit="step",
            bar_format=PROGRESS,
            dynamic_ncols=True,
            disable=not progress,
            mininterval=0.1 if sys.stderr.isatty() else 10,  # seconds; a file gets each update as another line
        ) as bar,
        nullcontext(_log_nothing) if run is None else run.logging() as log,
        nullcontext(_never) if run is None else noted(signal.SIGTERM) as stopped,
    ):
        for number, batch in zip(range(first, steps), batches_from(batches, first), strict=False):
            if carry_at is not None:
                state = state._replace(carry=carry_at(number, state.carry))
            state, arrays = step(state, batch)
            done = number + 1
            metrics = _numbers(arrays)
            if evaluate is not None and _is_due(done, evaluate_every, steps):
                metrics = _join(metrics, _numbers(evaluate(state)))
            log(done, metrics)
            _check_skipped(state, metrics, most_skipped)
            if progress:
                words = (describe or _loss)(metrics, _speed(bar.format_dict))
                bar.set_postfix_str(words + _skipped(state), refresh=False)
            bar.update()
            stop = stopped()
            if run is not None and (stop or _is_due(done, checkpoint_every, steps)):
                run.save(state)
            if stop:
                raise Stopped(state)
    return state


def _is_due(done: int, every: int | None, steps: int) -> bool:
    return done == steps or (every is not None and done % every == 0)


def _numbers(values: Mapping[str, Any]) -> Metrics:
    """Scalars as Python's own numbers, which JSON knows."""
    return {name: np.asarray(value).item() for name, value in values.items()}


def _join(metrics: Metrics, evaluation: Metrics) -> Metrics:
    """A step's metrics and its evaluation's."""
    if both := metrics.keys() & evaluation.keys():
        raise ValueError(
            f"fit: what `evaluate` gives must have names other than the step's metrics; got {min(both)!r}. Rename it."
        )
    return {**metrics, **evaluation}


def _check_skipped(state: TrainState, metrics: Metrics, most: int) -> None:
    in_a_row = int(state.skipped_in_a_row)
    if in_a_row > most:
        raise FloatingPointError(
            f"fit: no more than {most} steps in a row may be skipped because the loss, its gradient, the update or the "
            f"carry is not finite; got {in_a_row}, the last of them step {int(state.step)} with the loss "
            f"{metrics['loss']} and the gradient's norm {metrics.get('gradient_norm')}. Lower the learning rate, clip "
            "the gradient, or look at the batches of these steps."
        )


def _check_run(run: Any) -> None:
    if run is not None and not isinstance(run, RunDirectory):
        fix = f"Write run=RunDirectory({str(run)!r})."
        raise TypeError(f"fit: `run` must be a RunDirectory, or None; got {run!r}. {fix}")


def _check_counts(
    steps: int, evaluate_every: int | None, checkpoint_every: int | None, run: RunDirectory | None, most_skipped: int
) -> None:
    for name, value in (("steps", steps), ("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every)):
        if value is not None and value < 1:
            raise ValueError(f"fit: `{name}` must be at least 1; got {value}.")
    if most_skipped < 0:
        raise ValueError(f"fit: `most_skipped` must be at least 0; got {most_skipped}.")
    if checkpoint_every is not None and run is None:
        raise ValueError(
            "fit: with `checkpoint_every` there must be a directory for the checkpoints; got no `run`. Give "
            'run=RunDirectory("runs/mine").'
        )


def _loss(metrics: Metrics, steps_per_second: float) -> str:
    return f"loss {metrics['loss']:#.4g}"


def _skipped(state: TrainState) -> str:
    return f", {int(state.skipped)} skipped" if int(state.skipped) else ""


def _speed(now: Mapping[str, Any]) -> float:
    """Steps per second, for the progress bar before it counts the step."""
    # Before its first averages, tqdm knows no rate.
    speed: float = now["rate"] or (now["n"] + 1 - now["initial"]) / max(now["elapsed"], 1e-9)
    return speed


def _log_nothing(step: int, metrics: Metrics) -> None:
    """The log of a run that is written nowhere."""


def _never() -> bool:
    return False
