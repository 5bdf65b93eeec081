"""A run's directory: its options, the losses of its steps, and checkpoints to go on from."""

import json
import os
import shutil
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
        """
        self.path.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self.metrics_file.write_text("")
        self.config_file.write_text(json.dumps(asdict(config) | {"files": files, "sha256": sha256}, indent=2) + "\n")

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
        """Write a checkpoint, and remove the one before it once the new one is there.

        Args:
            state: a `TrainState`.
        """
        with self._manager() as manager:
            manager.save(int(state.step), args=ocp.args.StandardSave(state))

    def restore(self, like: Any) -> Any:
        """Read the latest checkpoint, and cut the metrics back to its step.

        Args:
            like: a `TrainState` of the shapes of the one that was saved, as arrays or `jax.ShapeDtypeStruct`.

        Returns:
            The `TrainState`.

        Raises:
            FileNotFoundError: if there is no checkpoint.
        """
        step = self.latest_step()
        with self._manager() as manager:
            state = manager.restore(step, args=ocp.args.StandardRestore(like))
        # One line a step, in order; the last one may have been cut by the kill.
        lines = self.metrics_file.read_text().splitlines(keepends=True)
        shortened = self.metrics_file.with_suffix(".new")
        shortened.write_text("".join(lines[:step]))
        os.replace(shortened, self.metrics_file)
        return state

    def latest_step(self) -> int:
        """The step of the latest checkpoint.

        Raises:
            FileNotFoundError: if there is none.
        """
        step = None
        if self.checkpoints.is_dir():
            with self._manager() as manager:
                step = manager.latest_step()
        if step is None:
            raise FileNotFoundError(
                f"train: with --resume there must be a checkpoint to go on from; got none in {self.checkpoints}. The "
                "run stopped before its first one (--checkpoint-every): start anew with --overwrite."
            )
        return step

    def _manager(self) -> ocp.CheckpointManager:
        # Not in the background: a step's losses are then logged before the checkpoint that follows them is there.
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        return ocp.CheckpointManager(self.checkpoints.resolve(), options=options)
