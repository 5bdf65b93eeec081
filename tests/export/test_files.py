"""An export that is not as it was saved is refused, with the reason; a save that is killed leaves the old one whole."""

import hashlib
import json
import os
from importlib import import_module
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from exports import rewrite, save_small, saved_scale


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")

files = import_module("rnnscan.export.common.files")
manifests = import_module("rnnscan.export.manifest")


@pytest.fixture
def folder(tmp_path):
    save_small(tmp_path / "saved", 2.0)
    assert saved_scale(tmp_path / "saved") == 2.0
    return tmp_path / "saved"


def refused(folder, message, error=ValueError):
    with pytest.raises(error, match=message):
        rs.export.load(folder)


@pytest.mark.parametrize("pattern", ["parameters-*", "predict.cpu-*"])
def test_a_file_that_is_not_as_it_was_saved(folder, pattern, tmp_path):
    (file,) = folder.glob(pattern)
    content = file.read_bytes()
    for changed, message in (
        (content[:-1], "is truncated, with"),
        (content + b"\0", "is too large, with"),
        (content[:100] + bytes([content[100] ^ 1]) + content[101:], "has been altered"),
    ):
        file.write_bytes(changed)
        refused(folder, f"{file.name} {message}")
    file.unlink()
    refused(folder, f"{file.name} is missing")
    (tmp_path / "elsewhere").write_bytes(content)
    file.symlink_to(tmp_path / "elsewhere")
    refused(folder, f"{file.name} is a link")
    file.unlink()
    os.mkfifo(file)
    refused(folder, f"{file.name} is no regular file")
    file.unlink()
    file.write_bytes(content)
    (folder / "notes.txt").write_text("another's")
    refused(folder, r"notes\.txt is foreign")


def test_a_manifest_that_is_not_as_it_was_saved(folder, tmp_path, monkeypatch):
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    for changed, message in (
        (text[:-20], "truncated or no JSON"),
        ("[" * 100_000, "truncated or no JSON"),
        ("[1]", "is foreign"),
        (json.dumps({"format": "another"}), "is foreign"),
        (text.replace("float32", "float16"), "has been altered"),
        (text.replace('"version": 1', '"version": 2'), "has version 2, newer than 1, of .*: update rnnscan"),
    ):
        manifest.write_text(changed)
        refused(folder, message)
    manifest.unlink()
    refused(folder, "without manifest.json", FileNotFoundError)
    (tmp_path / "elsewhere").write_text(text)
    manifest.symlink_to(tmp_path / "elsewhere")
    refused(folder, r"manifest\.json is a link")
    manifest.unlink()
    manifest.write_text(text)
    monkeypatch.setattr(files, "LARGEST_MANIFEST", 100)
    refused(folder, "more than 100")
    refused(tmp_path / "none", "there must be a folder", FileNotFoundError)


def test_a_manifest_that_leads_elsewhere_or_to_other_contents(folder):
    fields = json.loads((folder / "manifest.json").read_text())
    listed = fields["files"]
    name = fields["parameters_file"]
    for outside in ("../saved/" + name, "/etc/passwd", "notes.txt"):
        rewrite(folder, files=listed | {outside: listed[name]})
        refused(folder, "fields that are not those of version 1")
    rewrite(folder, parameters_file=outside)
    refused(folder, "fields that are not those of version 1")
    rewrite(folder, parameters_file=name, files=listed, inputs=[])
    refused(folder, "other inputs or outputs than the manifest says")
    (program,) = [one for one in listed if one != name]
    rewrite(folder, inputs=fields["inputs"], programs={"cpu": {"predict": name}})
    refused(folder, "not a program of jax.export")
    rewrite(folder, programs={"cpu": {"predict": program}}, parameters_file=program)
    refused(folder, "no safetensors file")
    rewrite(folder, parameters_file=name, parameters=fields["parameters"][:1])
    refused(folder, "other names, dtypes or shapes than the manifest says")
    rewrite(folder, parameters=fields["parameters"], programs={"tpu": {"predict": program}})
    refused(folder, "program for 'cpu', JAX's backend.*for 'tpu'")


def test_any_byte_that_changes_is_noticed(folder):
    random = np.random.default_rng(0)
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for place in random.integers(len(content), size=20):
            altered = bytearray(content)
            altered[place] ^= 1 << random.integers(8)
            file.write_bytes(altered)
            with pytest.raises(ValueError, match=r"manifest\.json|has been altered"):
                rs.export.load(folder)
        file.write_bytes(content)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("\n", "\n\n", 1))
    refused(folder, "has been altered")


def test_an_export_that_is_replaced_while_it_is_loaded(folder, monkeypatch):
    read_files = files.read_files

    def replaced_before(*arguments):
        monkeypatch.setattr(files, "read_files", read_files)
        save_small(folder, 3.0)
        return read_files(*arguments)

    monkeypatch.setattr(files, "read_files", replaced_before)
    assert saved_scale(folder) == 3.0


def test_nothing_is_parsed_before_all_hashes_are_checked(folder, monkeypatch):
    monkeypatch.setattr(rs.export.Predictor, "__init__", None)
    loading = import_module("rnnscan.export.load")
    for name in ("read", "decode_all"):
        monkeypatch.setattr(loading, name, lambda *arguments: pytest.fail("parsed"))
    (file,) = folder.glob("predict.cpu-*")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    refused(folder, "altered")


class Killed(BaseException):
    """No code of a save catches it, as none sees a kill."""


def test_a_save_that_is_stopped_anywhere_leaves_the_old_export_whole(folder, monkeypatch):
    outcomes = []
    stopped = True
    saving = import_module("rnnscan.export.save")
    lower_all, lowered = saving.lower_all, []

    def lower_once(*arguments):
        """All saves have the same program, and only how it is written counts here."""
        lowered.extend([] if lowered else [lower_all(*arguments)])
        return lowered[0]

    monkeypatch.setattr(saving, "lower_all", lower_once)
    old = {file.name: file.read_bytes() for file in folder.iterdir()}
    while stopped:
        for file in folder.iterdir():
            file.unlink()
        for name, content in old.items():
            (folder / name).write_bytes(content)
        left = 1 + len(outcomes)

        def counted(function):
            def run(*arguments, **options):
                nonlocal left
                left -= 1
                if left == 0:
                    raise Killed
                return function(*arguments, **options)

            return run

        with monkeypatch.context() as patched:
            for place, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
                patched.setattr(place, name, counted(getattr(place, name)))
            try:
                save_small(folder, 3.0)
                stopped = False
            except Killed:
                outcomes.append(saved_scale(folder))
    # Two files and the manifest are cleared, synced and renamed, the folder is synced, and an old file is removed.
    assert outcomes == [2.0] * 10 + [3.0] * 2
    assert saved_scale(folder) == 3.0


def test_a_save_removes_what_killed_ones_left_and_repairs_files(folder):
    (file,) = folder.glob("parameters-*")
    file.write_bytes(b"damaged")
    (folder / "parameters-0123456789abcdef.safetensors.unfinished").write_text("left")
    (folder / "predict.tpu-0123456789abcdef.jax_export").write_text("left")
    save_small(folder, 2.0)
    assert saved_scale(folder) == 2.0
    assert len(list(folder.iterdir())) == 3


def test_the_manifest_says_what_is_there(folder):
    fields = json.loads((folder / "manifest.json").read_text())
    assert fields["inputs"] == [{"name": "x", "spec": {"array": {"dtype": "float32", "shape": ["N", 3]}}}]
    assert fields["outputs"] == {"array": {"dtype": "float32", "shape": ["N", 4]}}
    assert [one["name"] for one in fields["parameters"]] == ["kernel", "scale"]
    assert set(fields["versions"]) == {"rnnscan", "jax", "jaxlib"}
    for name, spec in fields["files"].items():
        content = (folder / name).read_bytes()
        assert spec == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert jnp.dtype(fields["inputs"][0]["spec"]["array"]["dtype"]) == jnp.float32
