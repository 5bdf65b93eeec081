"""The manifest of an export: JSON that says what is in it, with the size and hash of every file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rnnscan.export.common.files import FileSpec, is_file_name
from rnnscan.export.common.specs import ArraySpec, from_json, to_json
from rnnscan.export.parameters import Parameter


FORMAT = "rnnscan.export"
# Change it with the fields. A newer manifest is rejected.
VERSION = 1


@dataclass(frozen=True)
class Stream:
    """The types of a streaming step: pytrees of specs.

    Attributes:
        x: one step's input.
        carry: the carry.
        y: one step's output.
    """

    x: Any
    carry: Any
    y: Any


@dataclass(frozen=True)
class Manifest:
    """What an export holds.

    Attributes:
        inputs: the specs of the inputs, in order, by name.
        outputs: the specs of the result.
        stream: the specs of a step; None if the function does not stream.
        parameters: the parameters, in the order of the programs' arguments.
        store: the dtype that weights were stored as, and the error that it makes in the outputs.
        programs: the names of the files of the programs, by platform and by function: "predict", "init" and "step".
        parameters_file: the name of the file of the parameters.
        vocabulary_file: the name of the file of a language model's vocabulary, or None.
        files: all files.
        versions: of rnnscan and jax, and of the calling convention of `jax.export`.
    """

    inputs: dict[str, Any]
    outputs: Any
    stream: Stream | None
    parameters: list[Parameter]
    store: dict[str, Any]
    programs: dict[str, dict[str, str]]
    parameters_file: str
    vocabulary_file: str | None
    files: dict[str, FileSpec]
    versions: dict[str, Any]

    def results(self) -> dict[str, Any]:
        """The specs of the result of each function: "predict", and "init" and "step" of a stream."""
        if self.stream is None:
            return {"predict": self.outputs}
        return {"predict": self.outputs, "init": self.stream.carry, "step": (self.stream.carry, self.stream.y)}


def dump(manifest: Manifest) -> bytes:
    """A manifest as JSON, with the SHA-256 of its other fields.

    Raises:
        TypeError: if inputs, outputs or the carry have nodes of other classes than JAX's own.
    """
    stream = manifest.stream
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "versions": manifest.versions,
        "inputs": [{"name": name, "spec": to_json(tree, name)} for name, tree in manifest.inputs.items()],
        "outputs": to_json(manifest.outputs, "outputs"),
        "stream": stream and {name: to_json(tree, name) for name, tree in vars(stream).items()},
        "parameters": [
            {
                "name": parameter.name,
                "spec": to_json(parameter.spec, parameter.name),
                "stored": parameter.stored,
                "error": parameter.error,
            }
            for parameter in manifest.parameters
        ],
        "store": manifest.store,
        "programs": manifest.programs,
        "parameters_file": manifest.parameters_file,
        "vocabulary_file": manifest.vocabulary_file,
        "files": {name: asdict(spec) for name, spec in manifest.files.items()},
    }
    return _text(fields)


def parse(content: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ValueError: if it is foreign, of a newer version, truncated or altered.
    """
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"manifest.json is truncated or no JSON ({type(error).__name__}: {error})") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError("manifest.json is foreign, it is none of rnnscan.export")
    if isinstance(fields.get("version"), int) and fields["version"] > VERSION:
        raise ValueError(
            f"manifest.json has version {fields['version']}, newer than {VERSION}, of {fields.get('versions')}: update "
            "rnnscan"
        )
    fields.pop("sha256", None)
    if _text(fields) != content:
        raise ValueError("manifest.json has been altered, its SHA-256 differs")
    try:
        return _read(fields)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"manifest.json has fields that are not those of version {VERSION} ({error!r})") from error


def _read(fields: Any) -> Manifest:
    stream = fields["stream"]
    manifest = Manifest(
        inputs={field["name"]: from_json(field["spec"]) for field in fields["inputs"]},
        outputs=from_json(fields["outputs"]),
        stream=None if stream is None else Stream(**{name: from_json(tree) for name, tree in stream.items()}),
        parameters=[_parameter(field) for field in fields["parameters"]],
        store=fields["store"],
        programs=fields["programs"],
        parameters_file=fields["parameters_file"],
        vocabulary_file=fields["vocabulary_file"],
        files={name: FileSpec(**spec) for name, spec in fields["files"].items()},
        versions=fields["versions"],
    )
    for name, spec in manifest.files.items():
        if not is_file_name(name) or type(spec.bytes) is not int or type(spec.sha256) is not str:
            raise ValueError(f"the file {name!r}")
    functions = {"predict"} if stream is None else {"predict", "init", "step"}
    for platform, programs in manifest.programs.items():
        if set(programs) != functions or not set(programs.values()) <= set(manifest.files):
            raise ValueError(f"the programs for {platform!r}")
    if manifest.parameters_file not in manifest.files:
        raise ValueError("the file of the parameters")
    if manifest.vocabulary_file is not None and (manifest.vocabulary_file not in manifest.files or stream is None):
        raise ValueError("the file of the vocabulary")
    return manifest


def _parameter(fields: Mapping[str, Any]) -> Parameter:
    spec = from_json(fields["spec"])
    if not isinstance(spec, ArraySpec) or not isinstance(fields["name"], str) or not isinstance(fields["stored"], str):
        raise ValueError(f"the parameter {fields['name']!r}")
    return Parameter(fields["name"], spec, fields["stored"], fields["error"])


def _text(fields: dict[str, Any]) -> bytes:
    """The fields with their SHA-256. Another text with the same fields is an altered one."""
    fingerprint = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
    return (json.dumps(fields | {"sha256": fingerprint}, indent=1) + "\n").encode()
