"""The training loop: steps with batches, metrics, evaluations, checkpoints, and a clean end."""

import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from rnnscan._util.messages import describe as describe_array
from rnnscan._util.messages import is_count
from rnnscan.train.batches import Batches, batches_from
from rnnscan.train.checkpoint import check_names
from rnnscan.train.failures import check_can_search, check_not_skipped
from rnnscan.train.metrics import Metrics
from rnnscan.train.processes import check_agreement, check_global, in_first, waiting_for_the_verdict
from rnnscan.train.run_directory import RunDirectory
from rnnscan.train.signals import first_interrupt_deferred, recorded
from rnnscan.train.state import TrainState
from rnnscan.train.step import Step


# Fits 80 columns; a narrower terminal cuts off the times.
PROGRESS = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix} [{elapsed}<{remaining}]"


class Stopped(SystemExit):
    """SIGTERM stopped the training after the state was saved. Uncaught, it ends the process with code 143.

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
    check_finite: bool = False,
    progress: bool = True,
    describe: Callable[[Metrics, float], str] | None = None,
) -> TrainState:
    """Train for a number of steps, with a progress bar.

    To resume after a kill, pass `run.restore(state)` as the state. The parameters at the end are the same, bit for bit:
    a step's batch and key depend only on its number, and the checkpoint holds everything else.

    Several processes (`join_processes`) call it alike, with the state and the batches on a mesh of all their devices.

    Args:
        step: a step from `make_step`, or another function `step(state, batch) -> (state, metrics)`, where metrics are
            named scalars with a `"loss"`.
        state: the state to start or resume from. It is not changed.
        batches: a function `batch_at(step)`, a sequence, or an iterable; see `batches_from`. A batch is any pytree of
            arrays. Steps count from 0 here and in `carry_at`.
        steps: the total number of steps, including those before `state`.
        carry_at: `carry_at(step, carry)` returns the carry that a step starts from, given the previous step's carry.
            None: the previous step's. To restart with each epoch:
            `lambda step, carry: initial if step % steps_per_epoch == 0 else carry`.
        evaluate: `evaluate(state)` returns named numbers, which are written with the step's metrics. The next step
            donates the state, so copy anything to keep.
        evaluate_every: steps between two evaluations; the last step is always evaluated.
        run: the directory for metrics and checkpoints; None: write nothing. With it, SIGTERM lets the current step
            finish, saves, and raises `Stopped` (in the main thread only). Several processes stop after the same step.
            In a single process the first Ctrl-C also saves, and raises `KeyboardInterrupt`; a second stops at once.
        checkpoint_every: steps between two checkpoints; the last step is always saved.
        most_skipped: the most steps in a row that may be skipped because a value is not finite.
        check_finite: whether to stop at the first step that would be skipped, with a sentence that says where its first
            value that is not finite began (`rnnscan.first_nonfinite`). With `run`, the state and the batch that
            reproduce it are written to `run.failure`. Steps that are finite cost nothing more.
        progress: whether to show a progress bar.
        describe: `describe(metrics, steps_per_second)` returns the text of the progress bar; None: the loss.

    Returns:
        The state after the last step.

    Raises:
        FloatingPointError: if more than `most_skipped` steps in a row were skipped; with `check_finite`, if one was.
        KeyboardInterrupt: after Ctrl-C.
        Stopped: after SIGTERM.
        TypeError: if `batches` has a wrong type.
        ValueError: if a number of steps is below 1, the run's directory is ahead of the state, no batch comes, or
            processes disagree on the steps, the state, or the version of rnnscan or JAX.

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
    _check_run(run, state)
    _check_counts(steps, evaluate_every, checkpoint_every, run, most_skipped)
    if evaluate_every is not None and evaluate is None:
        raise ValueError(
            "fit: `evaluate_every` must be given with a function; got no `evaluate`. Pass evaluate=lambda state: ..."
        )
    if check_finite:
        check_can_search(step)
    first = int(state.step)
    _check_processes(state, run, steps=steps, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every)
    if run is not None:
        in_first(lambda: run.check_not_ahead(first))
    if first >= steps:
        return state
    state = jax.tree.map(jnp.copy, state)  # A step donates its state.
    progress = progress and not jax.process_index()
    with (
        waiting_for_the_verdict(),
        tqdm(
            total=steps,
            initial=first,
            unit="step",
            bar_format=PROGRESS,
            dynamic_ncols=True,
            disable=not progress,
            mininterval=0.1 if sys.stderr.isatty() else 10,  # seconds; in a file each update is a line
        ) as bar,
        nullcontext(_log_nothing) if run is None or jax.process_index() else run.logging() as log,
        _stopped(run) as stopped,
        _interrupted(run) as interrupted,
    ):
        for number, batch in zip(range(first, steps), batches_from(batches, first), strict=False):
            check_global(batch, "the batch")
            if carry_at is not None:
                state = state._replace(carry=carry_at(number, state.carry))
            state, arrays = step(state, batch)
            done = number + 1
            metrics = _numbers(arrays)
            if evaluate is not None and _is_due(done, evaluate_every, steps):
                metrics = _join(metrics, _numbers(evaluate(state)))
            log(done, metrics)
            if check_finite:
                check_not_skipped(step, state, batch, run)
            _check_skipped(state, metrics, most_skipped)
            if progress:
                words = (describe or _loss)(metrics, _speed(bar.format_dict))
                bar.set_postfix_str(words + _skipped(state), refresh=False)
            bar.update()
            stop, interrupt = stopped(done), interrupted()
            if run is not None and (stop or interrupt or _is_due(done, checkpoint_every, steps)):
                run.save(state)
            if stop:
                raise Stopped(state)
            if interrupt:
                raise KeyboardInterrupt
    return state


def _is_due(done: int, every: int | None, steps: int) -> bool:
    return done == steps or (every is not None and done % every == 0)


def _numbers(values: Mapping[str, Any]) -> Metrics:
    """Scalars as Python numbers, for JSON."""
    return {name: np.asarray(value).item() for name, value in values.items()}


def _join(metrics: Metrics, evaluation: Metrics) -> Metrics:
    """A step's metrics and its evaluation's."""
    if both := ({"step"} | metrics.keys()) & evaluation.keys():
        raise ValueError(
            f"fit: `evaluate` must return names other than the step's metrics; got {min(both)!r}. Rename it."
        )
    return {**metrics, **evaluation}


def _check_skipped(state: TrainState, metrics: Metrics, most: int) -> None:
    in_a_row = int(state.skipped_in_a_row)
    if in_a_row > most:
        raise FloatingPointError(
            f"fit: no more than {most} steps in a row may be skipped because the loss, gradient, update or carry is "
            f"not finite; got {in_a_row}, the last of them step {int(state.step)} with the loss {metrics['loss']} and "
            f"gradient norm {metrics.get('gradient_norm')}. Lower the learning rate, clip the gradient, or check the "
            "batches of these steps."
        )


def _check_run(run: Any, state: TrainState) -> None:
    if run is None:
        return
    if not isinstance(run, RunDirectory):
        raise TypeError(
            f"fit: `run` must be a RunDirectory, or None; got {run!r}. Write run=RunDirectory({str(run)!r})."
        )
    check_names(state)


def _check_counts(
    steps: int, evaluate_every: int | None, checkpoint_every: int | None, run: RunDirectory | None, most_skipped: int
) -> None:
    for name, value in (("steps", steps), ("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every)):
        if value is not None and not is_count(value, least=1):
            raise ValueError(f"fit: `{name}` must be a whole number of at least 1; got {value!r}.")
    if most_skipped < 0:
        raise ValueError(f"fit: `most_skipped` must be at least 0; got {most_skipped}.")
    if checkpoint_every is not None and run is None:
        raise ValueError(
            'fit: `checkpoint_every` must be given with a directory; got no `run`. Pass run=RunDirectory("runs/mine").'
        )


def _loss(metrics: Metrics, steps_per_second: float) -> str:
    return f"loss {metrics['loss']:#.4g}"


def _skipped(state: TrainState) -> str:
    return f", {int(state.skipped)} skipped" if int(state.skipped) else ""


def _speed(now: Mapping[str, Any]) -> float:
    """Steps per second."""
    # Before its first averages, tqdm has no rate.
    speed: float = now["rate"] or (now["n"] + 1 - now["initial"]) / max(now["elapsed"], 1e-9)
    return speed


def _stopped(run: RunDirectory | None) -> AbstractContextManager[Callable[[int], bool]]:
    """A function of the steps done that says whether a SIGTERM has arrived; of several processes, in any of them.

    Several processes stop after the same step. JAX handles the signal then, also without a run.
    """
    if jax.process_count() > 1:
        return nullcontext(multihost_utils.reached_preemption_sync_point)
    return nullcontext(_never) if run is None else recorded(signal.SIGTERM)


def _interrupted(run: RunDirectory | None) -> AbstractContextManager[Callable[..., bool]]:
    """A function that says whether a Ctrl-C has arrived.

    One of several processes cannot save alone, so their Ctrl-C stops at once.
    """
    return nullcontext(_never) if run is None or jax.process_count() > 1 else first_interrupt_deferred()


def _check_processes(state: TrainState, run: RunDirectory | None, **counts: int | None) -> None:
    """Reject processes that would not do the same."""
    if jax.process_count() == 1:
        return
    arrays = {
        jax.tree_util.keystr(path): describe_array(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    check_agreement(state=arrays, number_of_steps_done=int(state.step), run=run is not None, **counts)
    check_global(state, "state")
    if run is not None:
        run.check_shared()


def _log_nothing(step: int, metrics: Metrics) -> None:
    """The log without a run."""


def _never(*_: int) -> bool:
    return False
