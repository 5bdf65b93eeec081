"""A run's directory: the metrics of its steps, and checkpoints to resume from."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax
import jax.numpy as jnp

from rnnscan.train.checkpoint import Checkpoints
from rnnscan.train.metrics import Metrics, append_line, check_tensorboard, cut_back, read_lines, tensorboard_writer
from rnnscan.train.processes import in_all, in_first
from rnnscan.train.state import TrainState


@dataclass(frozen=True)
class RunDirectory:
    """The directory of a run: `metrics.jsonl`, `checkpoints/` and, optionally, `tensorboard/`.

    A run that is killed at any moment can be resumed from its last checkpoint and ends with exactly the same
    parameters: checkpoints are atomic and hold the whole state. A damaged checkpoint is rejected, and the one before it
    is used. Several processes share the directory; see `join_processes`.

    Args:
        path: the directory. It is created at the first write.
        keep: the number of checkpoints to keep; at least 2, so that there is one before the last.
        tensorboard: whether to write event files for TensorBoard too.

    Raises:
        ImportError: if `tensorboard` is true and its extra is not installed.
        ValueError: if `keep` is below 2.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from rnnscan.train import begin
        >>> initial = begin({"w": jnp.ones(3)}, optax.sgd(0.1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = RunDirectory(f"{folder}/mine")
        ...     run.restore(initial) is initial  # before the first checkpoint
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
                f"RunDirectory: `keep` must be at least 2, for a checkpoint before the last; got {self.keep}."
            )
        if self.tensorboard:
            check_tensorboard()

    @property
    def metrics_file(self) -> Path:
        """A line of JSON for each step, in order: `{"step": 1, "loss": 2.5, "gradient_norm": 0.7, "skipped": 0}`."""
        return Path(self.path) / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """A folder for each checkpoint, named by its step."""
        return Path(self.path) / "checkpoints"

    @property
    def failure(self) -> Path:
        """The state and batch of a step that was not finite, and `report.txt`, which says how to load them."""
        return Path(self.path) / "failure"

    @property
    def tensorboard_folder(self) -> Path:
        """TensorBoard's `--logdir`."""
        return Path(self.path) / "tensorboard"

    def clear(self) -> None:
        """Remove the run. Other files stay."""
        for folder in (self.checkpoints, self.failure, self.tensorboard_folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.metrics_file.unlink(missing_ok=True)

    def log(self, step: int, metrics: Metrics) -> None:
        """Write one step's metrics. Steps count from 1."""
        self.metrics_file.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.metrics_file, step, metrics)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of all steps, a dictionary each, with their numbers as `"step"`."""
        return read_lines(self.metrics_file)

    def save(self, state: TrainState) -> None:
        """Write a checkpoint, then remove the oldest one. Ctrl-C waits until then."""
        self._checkpoints.save(int(state.step), state)

    def restore(self, initial: TrainState) -> TrainState:
        """Read the latest intact checkpoint, and cut the metrics back to its step.

        A damaged checkpoint is skipped with a warning, and its folder gets the suffix `.refused`.

        Args:
            initial: the state that the run began with.

        Returns:
            The state of the checkpoint; `initial` if there is none.

        Raises:
            ValueError: if all checkpoints are damaged, or the model, optimizer or carry does not fit.
        """
        self.check_shared()
        step, state = self._checkpoints.restore(initial)
        in_first(lambda: cut_back(self.metrics_file, step))
        return state

    def save_failure(self, state: TrainState, batch: Any, report: str) -> None:
        """Write the state before a step that is not finite, its batch, and a text.

        Args:
            state: the state before the step.
            batch: the step's batch.
            report: what is not finite.
        """
        shutil.rmtree(self.failure, ignore_errors=True)
        self._failures.save(int(state.step), _failure(state, batch))
        (self.failure / "report.txt").write_text(
            f"{report}\n\n"
            "To load the state and the batch, given any state and batch of the run, and to run the step again:\n\n"
            f"    state, batch = RunDirectory({str(self.path)!r}).load_failure(state, batch)\n"
            "    print(step.first_nonfinite(state, batch))\n"
        )

    def load_failure(self, state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        """Read what `save_failure` wrote.

        Args:
            state: a state of the run, such as the initial one. Only its types matter.
            batch: a batch of the run, likewise.

        Returns:
            The state before the step that is not finite, and its batch.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if it is damaged, or the state or batch does not fit.
        """
        if not self._failures.steps():
            raise FileNotFoundError(
                f"load_failure: the run must have a step that was not finite; got no {self.failure}. Train it with "
                "check_finite=True."
            )
        _, saved = self._failures.restore(_failure(state, batch))
        return saved["state"], saved["batch"]

    def latest_step(self) -> int:
        """The step of the latest checkpoint, or 0."""
        return max(self._checkpoints.steps(), default=0)

    def logged_step(self) -> int:
        """The latest step with metrics, or 0."""
        return max((line["step"] for line in self.read_metrics()), default=0)

    def check_shared(self) -> None:
        """Raise an OSError if one of several processes does not see the files that process 0 writes here."""
        if jax.process_count() == 1:
            return
        mark = Path(self.path) / ".shared"
        name = in_first(lambda: _write_mark(mark))

        def check() -> None:
            if not mark.is_file() or mark.read_text() != name:
                raise OSError(
                    f"train: the run's directory must be the same for all processes; got {Path(self.path).resolve()}, "
                    "where process 0 does not write. Use a directory on a disk that all machines share."
                )

        try:
            in_all(check)
        finally:
            in_first(lambda: mark.unlink(missing_ok=True))

    @contextmanager
    def logging(self) -> Iterator[Callable[[int, Metrics], None]]:
        """Yield a function like `log` that also writes for TensorBoard, if `tensorboard` is true."""
        if not self.tensorboard:
            yield self.log
            return
        with tensorboard_writer(self.tensorboard_folder, self.read_metrics()) as show:

            def log(step: int, metrics: Metrics) -> None:
                self.log(step, metrics)
                show(step, metrics)

            yield log

    def check_not_ahead(self, step: int) -> None:
        """Raise a ValueError if the directory has metrics or a checkpoint after `step`."""
        here = max(self.latest_step(), self.logged_step())
        if here > step:
            raise ValueError(
                f"fit: the run in {self.path} must not be ahead of the state; got a state after {step} steps, and "
                f"{here} steps there. Resume it with `state = run.restore(state)`, remove it with `run.clear()`, or "
                "use another directory."
            )

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.checkpoints, self.keep)

    @property
    def _failures(self) -> Checkpoints:
        return Checkpoints(self.failure, keep=1)


def _failure(state: TrainState, batch: Any) -> dict[str, Any]:
    """The arrays that reproduce a step."""
    return {"state": state, "batch": jax.tree.map(jnp.asarray, batch)}


def _write_mark(mark: Path) -> str:
    mark.parent.mkdir(parents=True, exist_ok=True)
    name = uuid4().hex
    mark.write_text(name)
    return name
