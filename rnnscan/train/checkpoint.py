"""Atomic checkpoints whose checksums are verified on reading."""

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

from rnnscan._util.messages import leaves_of_one_name
from rnnscan.train.processes import in_first
from rnnscan.train.signals import interrupt_deferred


# Suffixes of folders that are being written or removed, and of damaged checkpoints.
UNFINISHED, REMOVED, REFUSED = ".unfinished", ".removed", ".refused"


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints in a directory: `<step>/state`, by orbax, and `<step>/manifest.json`.

    The manifest holds the SHA-256 of every file and the shape and dtype of every array. A checkpoint is written under
    another name and renamed at the end, so a kill leaves no partial checkpoint. Of several processes that have joined,
    each writes its part of the arrays, and process 0 all else.

    Args:
        folder: the directory; it is created when needed.
        keep: the number of checkpoints to keep.
    """

    folder: Path
    keep: int

    def steps(self) -> list[int]:
        """The steps with a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint of a pytree of arrays, then remove old ones. Ctrl-C waits until then.

        A checkpoint of the same step is replaced.

        Raises:
            ValueError: if two arrays would have one name.
        """
        check_names(state)
        unfinished = self.folder / f"{step}{UNFINISHED}"

        def begin() -> None:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)

        def finish() -> None:
            manifest = _dump(step, _describe_arrays(state), _describe_files(unfinished))
            (unfinished / "manifest.json").write_text(manifest)
            self._remove(step)
            unfinished.rename(self.folder / str(step))
            for old in self.steps()[: -self.keep]:
                self._remove(old)
            for pattern in (UNFINISHED, REMOVED):  # left by a kill
                for path in self.folder.glob(f"*{pattern}"):
                    shutil.rmtree(path, ignore_errors=True)

        with interrupt_deferred():
            in_first(begin)
            with _checkpointer() as checkpointer:
                checkpointer.save((unfinished / "state").resolve(), args=ocp.args.StandardSave(_stored(state)))
            in_first(finish)

    def restore(self, like: Any) -> tuple[int, Any]:
        """Read the latest intact checkpoint.

        A damaged one gets the suffix `.refused`, and a warning says what is wrong with it.

        Args:
            like: a pytree of arrays like those that were saved.

        Returns:
            The checkpoint's step and the state; 0 and `like` without a checkpoint.

        Raises:
            ValueError: if all checkpoints are damaged, or if the latest intact one has other arrays than `like`.
        """
        step = in_first(lambda: self._latest_intact(like))
        if step is None:
            return 0, like
        with _checkpointer() as checkpointer:
            path = (self.folder / str(step) / "state").resolve()
            stored = iter(jax.tree.leaves(checkpointer.restore(path, args=ocp.args.StandardRestore(_stored(like)))))
        return step, jax.tree.map(lambda leaf: _commit_as(next(stored), leaf) if leaf.size else leaf, like)

    def _latest_intact(self, like: Any) -> int | None:
        """The step of the latest intact checkpoint, whose arrays are like the given ones; None: there is none."""
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                manifest = self._verify(step)
            except _DamagedError as error:
                damaged[step] = str(error)
                continue
            self._check_arrays(step, manifest["arrays"], _describe_arrays(like))
            for bad, reason in damaged.items():
                self._rename(bad, REFUSED)
                warnings.warn(
                    f"the checkpoint {self.folder / str(bad)} is damaged: {reason}. Resuming from the one before it, "
                    f"{self.folder / str(step)}.",
                    stacklevel=5,
                )
            return step
        if damaged:
            reasons = "; ".join(f"{self.folder / str(step)} is damaged: {why}" for step, why in damaged.items())
            raise ValueError(
                f"restore: a checkpoint must be intact; got none that is: {reasons}. Restore their files, or restart "
                "the run."
            )
        return None

    def _verify(self, step: int) -> dict[str, Any]:
        """The manifest of an intact checkpoint."""
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
            raise _DamagedError("its manifest.json has changed")
        if manifest["step"] != step:
            raise _DamagedError(f"its manifest.json is that of step {manifest['step']}")
        for name, written in manifest["files"].items():
            file = folder / name
            if not file.is_file():
                raise _DamagedError(f"its file {name} is missing")
            if file.stat().st_size != written["bytes"]:
                raise _DamagedError(f"its file {name} has {file.stat().st_size} bytes of {written['bytes']}")
            if _sha256(file) != written["sha256"]:
                raise _DamagedError(f"its file {name} has changed (SHA-256)")
        return manifest

    def _check_arrays(self, step: int, saved: dict[str, str], wanted: dict[str, str]) -> None:
        differing = [name for name in {**wanted, **saved} if saved.get(name) != wanted.get(name)]
        if differing:
            name = differing[0]
            raise ValueError(
                f"restore: the given state must have the saved state's arrays; got {name} "
                f"{wanted.get(name, 'missing')} for {saved.get(name, 'missing')} in {self.folder / str(step)}, and "
                f"{len(differing) - 1} other differences. Use the run's model, optimizer and carry, or another "
                "directory."
            )

    def _rename(self, step: int, suffix: str) -> Path:
        renamed = self.folder / f"{step}{suffix}"
        shutil.rmtree(renamed, ignore_errors=True)
        return (self.folder / str(step)).rename(renamed)

    def _remove(self, step: int) -> None:
        """Remove a checkpoint, if it exists. It is renamed first, so a kill leaves no partial checkpoint."""
        if (self.folder / str(step)).exists():
            shutil.rmtree(self._rename(step, REMOVED))


class _DamagedError(Exception):
    """A checkpoint differs from its manifest."""


def check_names(state: Any) -> None:
    """Raise a ValueError if orbax, which joins the keys of nested dictionaries by dots, gives two arrays one name."""
    if found := leaves_of_one_name(state, "."):
        name, one, other = found
        raise ValueError(
            f"save: the names of arrays must differ where their keys are joined by dots; got {one} and {other}, which "
            f"are both {name!r}. Rename one."
        )


def _stored(state: Any) -> Any:
    """The arrays that orbax writes: it refuses empty ones."""
    return jax.tree.map(lambda leaf: leaf if leaf.size else None, state)


def _checkpointer() -> ocp.Checkpointer:
    # Not in the background, so that a step's metrics are written before its checkpoint.
    return ocp.Checkpointer(ocp.StandardCheckpointHandler())


def _commit_as(leaf: Array, like: Array) -> Array:
    """Uncommit an array from its device if `like` is uncommitted, because orbax commits all arrays."""
    if getattr(like, "committed", False):
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
    """A manifest, with the SHA-256 of its other fields."""
    manifest = {"step": step, "arrays": arrays, "files": files}
    fingerprint = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps(manifest | {"sha256": fingerprint}, indent=1) + "\n"
