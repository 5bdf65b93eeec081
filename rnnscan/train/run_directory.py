"""A run's directory: the metrics of its steps, and checkpoints to go on from."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnscan.train.checkpoint import Checkpoints
from rnnscan.train.metrics import Metrics, append_line, check_tensorboard, cut_back, read_lines, tensorboard_writer
from rnnscan.train.state import TrainState


@dataclass(frozen=True)
class RunDirectory:
    """Where a run is written: `metrics.jsonl`, `checkpoints/` and, if asked for, `tensorboard/`.

    A run that is killed at any moment can be gone on with from its last checkpoint, to exactly the parameters that it
    would have had: a checkpoint is there as a whole or not at all, and holds all that the steps after it follow from.
    One that was truncated or altered afterwards is refused, and the one before it is used.

    Args:
        path: the directory. It is made when something is written.
        keep: how many checkpoints are kept; at least 2, so that there is one before the last.
        tensorboard: whether event files for TensorBoard are written beside the metrics.

    Raises:
        ImportError: if `tensorboard` is asked for and its extra is not installed.
        ValueError: if `keep` is below 2.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from rnnscan.train import begin
        >>> initial = begin({"w": jnp.ones(3)}, optax.sgd(0.1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDirectory(f"{folder}/mine")
        ...     run.restore(initial) is initial  # there is no checkpoint yet
        ...     run.save(initial._replace(step=jnp.int32(7)))
        ...     int(run.restore(initial).step)
        True
        7
    """

    path: Path | str
    keep: int = 2
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ValueError(
                f"RunDirectory: `keep` must be at least 2, so that there is a checkpoint before the last; got "
                f"{self.keep}."
            )
        if self.tensorboard:
            check_tensorboard()

    @property
    def metrics_file(self) -> Path:
        """A line of JSON for each step, in order: `{"step": 1, "loss": 2.5, "gradient_norm": 0.7, "skipped": 0}`."""
        return Path(self.path) / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """A folder for each checkpoint, with its step as its name."""
        return Path(self.path) / "checkpoints"

    @property
    def tensorboard_folder(self) -> Path:
        """TensorBoard's `--logdir`."""
        return Path(self.path) / "tensorboard"

    def clear(self) -> None:
        """Remove the run that is here. Files that no run writes stay."""
        for folder in (self.checkpoints, self.tensorboard_folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.metrics_file.unlink(missing_ok=True)

    def log(self, step: int, metrics: Metrics) -> None:
        """Write one step's metrics.

        Args:
            step: the step's number, from 1.
            metrics: numbers by their names.
        """
        self.metrics_file.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.metrics_file, step, metrics)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of all steps, a dictionary for each, with its number as `"step"`."""
        return read_lines(self.metrics_file)

    def save(self, state: TrainState) -> None:
        """Write a checkpoint, and remove the oldest once the new one is there. Ctrl-C waits until then.

        Args:
            state: the state.
        """
        self._checkpoints.save(int(state.step), state)

    def restore(self, initial: TrainState) -> TrainState:
        """Read the latest checkpoint that is as it was written, and cut the metrics back to its step.

        A checkpoint that is not as it was written is refused: a warning names it and says what is wrong, and its
        folder gets `.refused` behind its name.

        Args:
            initial: the state that the run began with.

        Returns:
            The state of the checkpoint; the initial one where there is no checkpoint yet.

        Raises:
            ValueError: if there are checkpoints, and none is as it was written; or if the model, the optimizer or the
                carry is another one.
        """
        step, state = self._checkpoints.restore(initial)
        cut_back(self.metrics_file, step)
        return state

    def latest_step(self) -> int:
        """The step of the latest checkpoint; 0 where there is none."""
        return max(self._checkpoints.steps(), default=0)

    def logged_step(self) -> int:
        """The latest step whose metrics are written; 0 where there are none."""
        return max((line["step"] for line in self.read_metrics()), default=0)

    @contextmanager
    def logging(self) -> Iterator[Callable[[int, Metrics], None]]:
        """Write the metrics of many steps, for TensorBoard too if that is asked for.

        Yields:
            A function like `log`.
        """
        if not self.tensorboard:
            yield self.log
            return
        with tensorboard_writer(self.tensorboard_folder, self.read_metrics()) as show:

            def log(step: int, metrics: Metrics) -> None:
                self.log(step, metrics)
                show(step, metrics)

            yield log

    def check_not_ahead(self, step: int) -> None:
        """Refuse to go on from a step that the run here has passed.

        Args:
            step: the number of steps made.

        Raises:
            ValueError: if there are metrics or a checkpoint of a later step.
        """
        here = max(self.latest_step(), self.logged_step())
        if here > step:
            raise ValueError(
                f"fit: the run in {self.path} must not be ahead of the state; got a state after {step} steps, and "
                f"{here} steps there. Go on with that run by `state = run.restore(state)`, remove it by `run.clear()`, "
                "or give another directory."
            )

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.checkpoints, self.keep)
