"""The directory of a run of `rnnscan train`, with its options and its text's fingerprint."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rnnscan.train.config import TrainConfig
from rnnscan.train.run_directory import RunDirectory


def config_file(run: RunDirectory) -> Path:
    """The run's options and its text's files and fingerprint, as JSON."""
    return Path(run.path) / "config.json"


def check_free(run: RunDirectory, *, overwrite: bool) -> None:
    """Reject a path that is a file, or a directory with files unless `overwrite`."""
    path = Path(run.path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"train: --out must be a directory; got {path}, which is a file. Use another --out.")
    if not overwrite and path.exists() and any(path.iterdir()):
        raise FileExistsError(
            f"train: --out must be a new or an empty directory; got {path}, which holds files. Continue its run with "
            "--resume, replace it with --overwrite, or use another --out."
        )


def begin_run(run: RunDirectory, config: TrainConfig, *, files: list[str], sha256: str) -> None:
    """Start a run in place of an existing one. Other files stay.

    Args:
        run: the directory.
        config: the run's options.
        files: the paths of the text's files; empty for the standard library.
        sha256: the text's fingerprint.

    Raises:
        OSError: if the directory is not writable.
    """
    saved = json.dumps(asdict(config) | {"files": files, "sha256": sha256}, indent=2) + "\n"
    try:
        Path(run.path).mkdir(parents=True, exist_ok=True)
        run.clear()
        run.metrics_file.touch()
        config_file(run).write_text(saved)
    except OSError as error:
        raise type(error)(
            f"train: --out must be a writable directory; got {run.path}: {error.strerror}. Use another --out."
        ) from error


def read_run(run: RunDirectory) -> tuple[TrainConfig, list[str], str]:
    """The run's options, the paths of its text's files, and the text's fingerprint.

    Raises:
        FileNotFoundError: if the run does not exist.
        ValueError: if its config.json does not fit this version of rnnscan.
    """
    file = config_file(run)
    if not file.is_file():
        raise FileNotFoundError(
            f"train: with --resume, --out must hold a run; got no {file}. "
            "Check --out, or leave out --resume to start a run."
        )
    try:
        saved = json.loads(file.read_text())
        files, sha256 = saved.pop("files"), saved.pop("sha256")
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()
        }
        return TrainConfig(**options), files, sha256
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"train: {file} must hold the options of a run of this version of rnnscan; got {error}. "
            "Restart it with --overwrite."
        ) from error
