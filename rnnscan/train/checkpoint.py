"""A run's directory: its options, the losses of its steps, and checkpoints to go on from."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from rnnscan.train.config import TrainConfig


@dataclass(frozen=True)
class RunDirectory:
    """Where a run is written: `config.json`, `metrics.jsonl`, and `checkpoints/` by orbax.

    A run that is killed at any moment can be gone on with from its last checkpoint, to exactly the losses that it
    would have had: a checkpoint is there as a whole or not at all, and holds all that the steps after it follow from.

    Args:
        path: the directory.
    """

    path: Path

    @property
    def config_file(self) -> Path:
        """The run's options and its text's files and fingerprint, as JSON."""
        return self.path / "config.json"

    @property
    def metrics_file(self) -> Path:
        """A line of JSON for each step, in order: `{"step": 1, "loss": nats, "bits_per_byte": bits}`."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Orbax's directory; the latest checkpoint is kept."""
        return self.path / "checkpoints"

    def check_free(self, *, overwrite: bool) -> None:
        """Refuse a directory that holds something.

        Args:
            overwrite: whether that may be replaced.

        Raises:
            FileExistsError: if there is something that may not.
            NotADirectoryError: if the path is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"train: --out must be a directory; got {self.path}, which is a file.")
        if not overwrite and self.path.exists() and any(self.path.iterdir()):
            raise FileExistsError(
                f"train: --out must be a new or an empty directory; got {self.path}, which holds files. Go on with the "
                "run in it by --resume, replace that run by --overwrite, or give another --out."
            )

    def begin(self, config: TrainConfig, *, files: list[str], sha256: str) -> None:
        """Start a run here in place of any run that was here. Files that no run writes stay.

        Args:
            config: the run's options.
            files: the paths of the text's files; empty for the standard library.
            sha256: the text's fingerprint.

        Raises:
            OSError: if nothing can be written here.
        """
        saved = json.dumps(asdict(config) | {"files": files, "sha256": sha256}, indent=2) + "\n"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            self.metrics_file.write_text("")
            self.config_file.write_text(saved)
        except OSError as error:
            raise type(error)(
                f"train: --out must be a directory that can be written; got {self.path}: {error.strerror}. "
                "Give another --out."
            ) from error

    def read_config(self) -> tuple[TrainConfig, list[str], str]:
        """Read what `begin` wrote.

        Returns:
            The run's options, the paths of its files, and its text's fingerprint.

        Raises:
            FileNotFoundError: if there is no run.
            ValueError: if its config.json is not one of this version of rnnscan.
        """
        if not self.config_file.is_file():
            raise FileNotFoundError(
                f"train: with --resume there must be a run to go on with; got no {self.config_file}. "
                "Check --out, or leave --resume out to start a run."
            )
        try:
            saved = json.loads(self.config_file.read_text())
            files, sha256 = saved.pop("files"), saved.pop("sha256")
            options: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()
            }
            return TrainConfig(**options), files, sha256
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"train: {self.config_file} must hold the options of a run of this version of rnnscan; got {error}. "
                "Start anew with --overwrite."
            ) from error

    def log(self, step: int, loss: float) -> None:
        """Write one step's loss.

        Args:
            step: the step's number, from 1.
            loss: in nats a byte.
        """
        with self.metrics_file.open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "bits_per_byte": loss / log(2)}) + "\n")

    def save(self, state: Any) -> None:
        """Write a checkpoint, and remove the one before it once the new one is there. Ctrl-C waits until then.

        Args:
            state: a `TrainState`.
        """
        with _interrupts_later(), self._manager() as manager:
            manager.save(int(state.step), args=ocp.args.StandardSave(state))

    def restore(self, initial: Any) -> Any:
        """Read the latest checkpoint, and cut the metrics back to its step.

        Args:
            initial: the `TrainState` that the run began with.

        Returns:
            The `TrainState` of the checkpoint; the initial one where there is no checkpoint yet.

        Raises:
            ValueError: if the checkpoint cannot be read.
        """
        step, state = self.latest_step(), initial
        if step:
            state = self._read_checkpoint(step, initial)
        # One line a step, in order; the last one may have been cut by the kill.
        lines = self.metrics_file.read_text().splitlines(keepends=True)
        shortened = self.metrics_file.with_suffix(".new")
        shortened.write_text("".join(lines[:step]))
        os.replace(shortened, self.metrics_file)
        return state

    def latest_step(self) -> int:
        """The step of the latest checkpoint; 0 where there is none."""
        if not self.checkpoints.is_dir():
            return 0
        with self._manager() as manager:
            return manager.latest_step() or 0

    def logged_step(self) -> int:
        """The latest step whose loss is written."""
        return self.metrics_file.read_text().count("\n")

    def _read_checkpoint(self, step: int, like: Any) -> Any:
        try:
            with self._manager() as manager:
                return manager.restore(step, args=ocp.args.StandardRestore(like))
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"train: with --resume the checkpoint must be as it was written; got {self.checkpoints / str(step)}, "
                f"which cannot be read ({error}). Start anew with --overwrite."
            ) from error

    def _manager(self) -> ocp.CheckpointManager:
        # Not in the background: a step's losses are then logged before the checkpoint that follows them is there.
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        return ocp.CheckpointManager(self.checkpoints.resolve(), options=options)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let a Ctrl-C wait until the end, so that what is written meanwhile is there as a whole."""
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C interrupts the main thread alone.
        yield
        return
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        signal.raise_signal(signal.SIGINT)
