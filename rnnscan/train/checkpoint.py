"""Checkpoints that are there as a whole or not at all, and that are read only where they are as they were written."""

import hashlib
import json
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array

from rnnscan.train.signals import interrupts_later


# Names that no step has, for what is being written or removed, and for what was refused.
UNFINISHED, REMOVED, REFUSED = ".unfinished", ".removed", ".refused"


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints in a directory: `<step>/state`, by orbax, and `<step>/manifest.json`.

    The manifest holds the SHA-256 of every file and the shape and type of every array. Both are written under another
    name, which is changed to the step's at the end: a process that is killed leaves no half of a checkpoint. One
    process writes.

    Args:
        folder: the directory. It is made when it is needed.
        keep: how many checkpoints are kept.
    """

    folder: Path
    keep: int

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint; once it is there, remove what is not to be kept. Ctrl-C waits until then.

        Args:
            step: its number. A checkpoint of the same step is replaced.
            state: a pytree of arrays.
        """
        with interrupts_later():
            unfinished = self.folder / f"{step}{UNFINISHED}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            with _checkpointer() as checkpointer:
                checkpointer.save((unfinished / "state").resolve(), args=ocp.args.StandardSave(state))
            manifest = _dump(step, _describe_arrays(state), _describe_files(unfinished))
            (unfinished / "manifest.json").write_text(manifest)
            self._remove(step)
            unfinished.rename(self.folder / str(step))
            for old in self.steps()[: -self.keep]:
                self._remove(old)
            for pattern in (UNFINISHED, REMOVED):  # what a kill has left
                for path in self.folder.glob(f"*{pattern}"):
                    shutil.rmtree(path, ignore_errors=True)

    def restore(self, like: Any) -> tuple[int, Any]:
        """Read the latest checkpoint that is as it was written.

        One that is not gets `.refused` behind its name, and a warning says what is wrong with it.

        Args:
            like: a pytree of arrays like those that were saved.

        Returns:
            The checkpoint's step and the state; 0 and `like` where there is no checkpoint.

        Raises:
            ValueError: if there are checkpoints and none is as it was written, or if the latest one that is has other
                arrays than `like`.
        """
        refused: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                manifest = self._verify(step)
            except _DamagedError as error:
                refused[step] = str(error)
                continue
            self._check_arrays(step, manifest["arrays"], _describe_arrays(like))
            for bad, reason in refused.items():
                self._set_aside(bad)
                warnings.warn(
                    f"the checkpoint {self.folder / str(bad)} is refused: {reason}. Going on from the one before it, "
                    f"{self.folder / str(step)}.",
                    stacklevel=3,
                )
            with _checkpointer() as checkpointer:
                path = (self.folder / str(step) / "state").resolve()
                state = checkpointer.restore(path, args=ocp.args.StandardRestore(like))
            return step, jax.tree.map(_commit_as, state, like)
        if refused:
            reasons = "; ".join(f"{self.folder / str(step)} is refused: {why}" for step, why in refused.items())
            raise ValueError(
                f"restore: a checkpoint must be as it was written; got none that is: {reasons}. Put their files back, "
                "or start the run anew."
            )
        return 0, like

    def _verify(self, step: int) -> dict[str, Any]:
        """The manifest of a checkpoint whose files are all as they were written."""
        folder = self.folder / str(step)
        try:
            text = (folder / "manifest.json").read_text()
            manifest: dict[str, Any] = json.loads(text)
            whole = _dump(manifest["step"], manifest["arrays"], manifest["files"]) == text
        except FileNotFoundError as error:
            raise _DamagedError("its manifest.json is missing") from error
        except (KeyError, TypeError, ValueError) as error:
            raise _DamagedError(f"its manifest.json cannot be read ({error!r})") from error
        if not whole:
            raise _DamagedError("its manifest.json is not as it was written")
        if manifest["step"] != step:
            raise _DamagedError(f"its manifest.json is that of step {manifest['step']}")
        for name, written in manifest["files"].items():
            file = folder / name
            if not file.is_file():
                raise _DamagedError(f"its file {name} is missing")
            if file.stat().st_size != written["bytes"]:
                raise _DamagedError(f"its file {name} has {file.stat().st_size} bytes of {written['bytes']}")
            if _sha256(file) != written["sha256"]:
                raise _DamagedError(f"its file {name} has another content than was written (SHA-256)")
        return manifest

    def _check_arrays(self, step: int, saved: dict[str, str], wanted: dict[str, str]) -> None:
        differing = [name for name in {**wanted, **saved} if saved.get(name) != wanted.get(name)]
        if differing:
            name = differing[0]
            raise ValueError(
                f"restore: the state given must have the arrays of the one that was saved; got {name} "
                f"{wanted.get(name, 'missing')} for {saved.get(name, 'missing')} in {self.folder / str(step)}, and "
                f"{len(differing) - 1} other differences. Give the model, optimizer and carry that the run began with, "
                "or begin another run in another directory."
            )

    def _set_aside(self, step: int) -> None:
        refused = self.folder / f"{step}{REFUSED}"
        shutil.rmtree(refused, ignore_errors=True)
        (self.folder / str(step)).rename(refused)

    def _remove(self, step: int) -> None:
        """Remove a checkpoint, if it is there, so that a kill meanwhile leaves all of it or nothing of that name."""
        if (self.folder / str(step)).exists():
            removed = self.folder / f"{step}{REMOVED}"
            shutil.rmtree(removed, ignore_errors=True)
            (self.folder / str(step)).rename(removed)
            shutil.rmtree(removed)


class _DamagedError(Exception):
    """What is not as it was written."""


def _checkpointer() -> ocp.Checkpointer:
    # Not in the background: a step's metrics are then written before the checkpoint that follows them is there.
    return ocp.Checkpointer(ocp.StandardCheckpointHandler())


def _commit_as(leaf: Array, like: Array) -> Array:
    """Give an array the freedom to be moved to other devices that the one before it had. Orbax commits all."""
    if like.committed:
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_commit_as(jax.random.key_data(leaf), like), impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))


def _describe_arrays(state: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _describe_files(folder: Path) -> dict[str, dict[str, int | str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files
    }


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _dump(step: int, arrays: dict[str, str], files: dict[str, Any]) -> str:
    """A manifest, with the SHA-256 of all else that is in it."""
    manifest = {"step": step, "arrays": arrays, "files": files}
    fingerprint = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps(manifest | {"sha256": fingerprint}, indent=1) + "\n"
