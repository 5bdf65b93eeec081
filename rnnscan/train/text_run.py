"""The directory of a run of `rnnscan train`: beside what every run writes, its options and its text's fingerprint."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rnnscan.train.config import TrainConfig
from rnnscan.train.run_directory import RunDirectory


def config_file(run: RunDirectory) -> Path:
    """The run's options and its text's files and fingerprint, as JSON.

    Args:
        run: where the run is written.
    """
    return Path(run.path) / "config.json"


def check_free(run: RunDirectory, *, overwrite: bool) -> None:
    """Refuse a directory that holds something.

    Args:
        run: where a run is to be written.
        overwrite: whether what is there may be replaced.

    Raises:
        FileExistsError: if there is something that may not.
        NotADirectoryError: if the path is a file.
    """
    path = Path(run.path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"train: --out must be a directory; got {path}, which is a file.")
    if not overwrite and path.exists() and any(path.iterdir()):
        raise FileExistsError(
            f"train: --out must be a new or an empty directory; got {path}, which holds files. Go on with the "
            "run in it by --resume, replace that run by --overwrite, or give another --out."
        )


def begin_run(run: RunDirectory, config: TrainConfig, *, files: list[str], sha256: str) -> None:
    """Start a run in place of any run that was there. Files that no run writes stay.

    Args:
        run: where to write it.
        config: its options.
        files: the paths of the text's files; empty for the standard library.
        sha256: the text's fingerprint.

    Raises:
        OSError: if nothing can be written there.
    """
    saved = json.dumps(asdict(config) | {"files": files, "sha256": sha256}, indent=2) + "\n"
    try:
        Path(run.path).mkdir(parents=True, exist_ok=True)
        run.clear()
        run.metrics_file.touch()
        config_file(run).write_text(saved)
    except OSError as error:
        raise type(error)(
            f"train: --out must be a directory that can be written; got {run.path}: {error.strerror}. "
            "Give another --out."
        ) from error


def read_run(run: RunDirectory) -> tuple[TrainConfig, list[str], str]:
    """Read what `begin_run` wrote.

    Args:
        run: where the run is written.

    Returns:
        The run's options, the paths of its files, and its text's fingerprint.

    Raises:
        FileNotFoundError: if there is no run.
        ValueError: if its config.json is not one of this version of rnnscan.
    """
    file = config_file(run)
    if not file.is_file():
        raise FileNotFoundError(
            f"train: with --resume there must be a run to go on with; got no {file}. "
            "Check --out, or leave --resume out to start a run."
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
            "Start anew with --overwrite."
        ) from error
