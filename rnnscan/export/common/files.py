"""The files of an export: written so that a kill leaves the old ones whole, and read only after their hash is checked.

A file has a part of its hash in its name, so a new export never overwrites a file of the old one. Replacing
`manifest.json`, in one step, makes the new export the current one.
"""

import hashlib
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path


MANIFEST = "manifest.json"
# A manifest of 10,000 parameters has 3 MB.
LARGEST_MANIFEST = 64 << 20
_UNFINISHED = ".unfinished"
_OURS = re.compile(r"[a-z0-9_.]+-[0-9a-f]{16}\.(safetensors|jax_export|json)")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileSpec:
    """The size and hash of a file.

    Attributes:
        bytes: the size.
        sha256: the SHA-256, in hexadecimal digits.
    """

    bytes: int
    sha256: str


def is_file_name(name: str) -> bool:
    """Whether a file of an export may have this name. It never leaves the folder."""
    return _OURS.fullmatch(name) is not None


def check_target(folder: Path) -> None:
    """Reject a path that holds anything but an export.

    Raises:
        FileExistsError: if it does.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise FileExistsError(f"export.save: the path must be a folder, or free; got the file {str(folder)!r}.")
    foreign = [name for name in sorted(os.listdir(folder)) if not _is_ours(name)]
    if foreign:
        raise FileExistsError(
            f"export.save: the folder must be empty or hold an export; got {str(folder)!r}, with {foreign[0]!r} in it. "
            "Use another folder."
        )


def name_of(stem: str, suffix: str, content: bytes) -> tuple[str, FileSpec]:
    """The name of a file with this content, its size and its hash."""
    digest = hashlib.sha256(content).hexdigest()
    return f"{stem}-{digest[:16]}.{suffix}", FileSpec(len(content), digest)


def write_all(folder: Path, manifest: bytes, contents: Mapping[str, bytes]) -> None:
    """Write a new export and make it the current one, then remove files of the old one and of killed saves.

    Args:
        folder: the folder; it is created when needed.
        manifest: the content of the manifest.
        contents: the contents of the files that the manifest lists, by the names of `name_of`. A file of the old export
            has another name, or the same content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        _replace(folder / name, content)
    _sync_folder(folder)
    _replace(folder / MANIFEST, manifest)
    _sync_folder(folder)
    for name in os.listdir(folder):
        if _is_ours(name) and name != MANIFEST and name not in contents:
            (folder / name).unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write one file in one step: if the process is killed, an old file there stays whole.

    Args:
        path: the file; its folder is created when needed.
        content: the content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, content)
    _sync_folder(path.parent)


def read_manifest(folder: Path) -> bytes:
    """The content of the manifest.

    Raises:
        FileNotFoundError: if it is missing.
        ValueError: if it is a link, no file, or too large.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"export.load: there must be a folder {str(folder)!r}; got none. Check the path.")
    try:
        size = os.lstat(folder / MANIFEST).st_size
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"export.load: the folder must hold a complete export; got {str(folder)!r} without {MANIFEST}. Save it "
            "again: the folder is another's, or a first save did not end."
        ) from error
    if size > LARGEST_MANIFEST:
        raise ValueError(refused(folder, f"{MANIFEST} has {size} bytes, more than {LARGEST_MANIFEST}"))
    content, _ = _read(folder, MANIFEST, size, keep=True)
    return content


def read_files(folder: Path, files: Mapping[str, FileSpec], wanted: Collection[str]) -> dict[str, bytes]:
    """Check all files of an export, then return the content of some.

    Args:
        folder: the folder.
        files: the files that the manifest lists.
        wanted: the names of the files to return.

    Raises:
        ValueError: if a file is missing, truncated, altered, too large, foreign or a link.
    """
    for name in sorted(os.listdir(folder)):
        if not _is_ours(name):
            raise ValueError(refused(folder, f"the file {name} is foreign, it is not in {MANIFEST}"))
    contents = {}
    for name, spec in files.items():
        content, digest = _read(folder, name, spec.bytes, keep=name in wanted)
        if digest != spec.sha256:
            raise ValueError(refused(folder, f"its file {name} has been altered, its SHA-256 differs"))
        if name in wanted:
            contents[name] = content
    return contents


def refused(folder: Path, reason: str) -> str:
    """The message for an export that is not as it was saved."""
    return (
        f"export.load: an export must be as it was saved; got {str(folder)!r}, where {reason}. Save or copy it again."
    )


def _is_ours(name: str) -> bool:
    """Whether `write_all` may have made the file, also one that was killed."""
    name = name.removesuffix(_UNFINISHED)
    return name == MANIFEST or is_file_name(name)


def _read(folder: Path, name: str, size: int, *, keep: bool) -> tuple[bytes, str]:
    """Read a file of `size` bytes, and no more. Returns its content, if it is kept, and its hash."""
    path = folder / name
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError as error:
        raise ValueError(refused(folder, f"its file {name} is missing")) from error
    if not stat.S_ISREG(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "no regular file"
        raise ValueError(refused(folder, f"{name} is {kind}"))
    # Not through a link that replaced the file meanwhile.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(opened, "rb") as file:
        there = os.fstat(opened).st_size
        if there != size:
            kind = "truncated" if there < size else "too large"
            raise ValueError(refused(folder, f"its file {name} is {kind}, with {there} bytes of {size}"))
        digest, blocks, left = hashlib.sha256(), [], size
        while left and (block := file.read(min(left, _BLOCK))):
            digest.update(block)
            left -= len(block)
            if keep:
                blocks.append(block)
    return b"".join(blocks), digest.hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write a file under another name, onto the disk, and rename it in one step."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    unfinished.unlink(missing_ok=True)  # It may be a link.
    with unfinished.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _sync_folder(folder: Path) -> None:
    """Bring renames onto the disk, where the system can."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
