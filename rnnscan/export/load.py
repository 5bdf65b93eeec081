"""Read an export."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import listing
from rnnscan.export.common import files
from rnnscan.export.common.specs import ArraySpec
from rnnscan.export.lower import read
from rnnscan.export.manifest import Manifest, parse
from rnnscan.export.parameters import decode_all
from rnnscan.export.predictor import Predictor
from rnnscan.export.vocabulary import Vocabulary, check_vocabulary
from rnnscan.export.vocabulary import parse as parse_vocabulary


def load(path: str | Path) -> Predictor:
    """Read what `save` wrote, for the default backend of JAX.

    Nothing in the folder is unpickled or run as Python. The hash of every file is checked before any is parsed. No file
    is read beyond the size that the manifest says, and links are not followed. Hashes protect from damage, not from
    someone who can write a whole export with its manifest.

    Args:
        path: the folder.

    Returns:
        The exported function, with its parameters on the default device.

    Raises:
        FileNotFoundError: if the folder has no export.
        ValueError: if a file is truncated, altered, missing, foreign, too large or a link; if the manifest is of a
            newer version; if the export has no program for the backend; or if the export holds 64-bit arrays, and
            `jax_enable_x64` is off.
        ImportError: if safetensors or flatbuffers is not installed.
    """
    folder = Path(path)
    while True:
        content = files.read_manifest(folder)
        try:
            return _load(folder, content)
        except ValueError:
            # A save that ends meanwhile removes the old files.
            if files.read_manifest(folder) == content:
                raise


def _load(folder: Path, content: bytes) -> Predictor:
    try:
        manifest = parse(content)
    except ValueError as error:
        raise ValueError(files.refused(folder, str(error))) from error
    platform = jax.export.default_export_platform()
    if platform not in manifest.programs:
        raise ValueError(
            f"export.load: the export must have a program for {platform!r}, JAX's backend; got {str(folder)!r}, with "
            f"programs for {listing(manifest.programs)}. Save it for {platform!r} too."
        )
    _check_x64(folder, manifest)
    programs = manifest.programs[platform]
    wanted = {manifest.parameters_file, *programs.values()}
    if manifest.vocabulary_file is not None:
        wanted.add(manifest.vocabulary_file)
    contents = files.read_files(folder, manifest.files, wanted)
    try:
        arrays = decode_all(manifest.parameters, contents[manifest.parameters_file])
        functions = {}
        vocabulary = _vocabulary(manifest, contents)
        for function, (inputs, outputs) in _signatures(manifest).items():
            functions[function] = read(contents[programs[function]], inputs, outputs, platform)
    except ValueError as error:
        raise ValueError(files.refused(folder, str(error))) from error
    return Predictor(manifest, platform, [jnp.asarray(array) for array in arrays], functions, vocabulary)


def _vocabulary(manifest: Manifest, contents: dict[str, bytes]) -> Vocabulary | None:
    if manifest.vocabulary_file is None or manifest.stream is None:
        return None
    vocabulary = parse_vocabulary(contents[manifest.vocabulary_file])
    check_vocabulary(vocabulary, manifest.stream.x, manifest.stream.y)
    return vocabulary


def _signatures(manifest: Manifest) -> dict[str, tuple[list[ArraySpec], list[ArraySpec]]]:
    """The specs of the leaves of the arguments and results of each program."""
    params = [parameter.spec for parameter in manifest.parameters]
    arguments: dict[str, Any] = {"predict": list(manifest.inputs.values())}
    if (stream := manifest.stream) is not None:
        arguments |= {"init": stream.x, "step": (stream.carry, stream.x)}
    results = manifest.results()
    specs = {name: (jax.tree.leaves(inputs), jax.tree.leaves(results[name])) for name, inputs in arguments.items()}
    return {name: ([*params, *inputs], outputs) for name, (inputs, outputs) in specs.items()}


def _check_x64(folder: Path, manifest: Manifest) -> None:
    specs = [spec for inputs, outputs in _signatures(manifest).values() for spec in (*inputs, *outputs)]
    wide = sorted({spec.dtype for spec in specs if jnp.dtype(spec.dtype) != jax.dtypes.canonicalize_dtype(spec.dtype)})
    if wide:
        raise ValueError(
            f"export.load: JAX must have 64-bit types for {str(folder)!r}; got {listing(wide)} there, and "
            'jax_enable_x64 is off. Call jax.config.update("jax_enable_x64", True) first.'
        )
