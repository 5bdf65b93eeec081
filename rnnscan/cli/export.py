"""`rnnscan export`: a trained language model, or a function of a module, as a folder that runs without its code."""

import inspect
import json
import shlex
import warnings
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import rnnscan as rs
from rnnscan._util.byte_sizes import readable_bytes
from rnnscan._util.messages import describe
from rnnscan.cli.modules import import_attribute
from rnnscan.cli.options import print_warning, readable_errors
from rnnscan.export.save import PLATFORMS
from rnnscan.train import RunDirectory, TrainConfig, begin_language_model, export_language_model
from rnnscan.train.text_run import config_file, read_run


class Store(StrEnum):
    """The dtypes to store parameters as."""

    BFLOAT16 = "bfloat16"
    INT8 = "int8"


def export(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write. An old export there is replaced.")],
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC",
            help="module:function. The function takes nothing, and returns the arguments of rnnscan.export.save after "
            "the path: a tuple or a dictionary.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The directory of a run of `rnnscan train`, in place of SPEC.")
    ] = None,
    platforms: Annotated[
        str | None, typer.Option(help="Platforms to lower for, with commas between.", show_default="cpu,cuda,tpu")
    ] = None,
    store: Annotated[
        Store | None, typer.Option(help="Store parameters as this dtype, in fewer bits.", show_default="exact")
    ] = None,
) -> None:
    """Write a trained language model, or a function of yours, to a folder that runs without its code.

    `rnnscan run` and rnnscan.export.load read the folder.
    """
    with readable_errors():
        if (spec is None) == (checkpoint is None):
            raise ValueError(
                f"export: one of SPEC and --checkpoint must be given; got {'neither' if spec is None else 'both'}. "
                "Write --checkpoint RUN for a run of `rnnscan train`."
            )
        options: dict[str, Any] = {} if platforms is None else {"platforms": parse_platforms(platforms)}
        if store is not None:
            options["store"] = store.value
        function = None if spec is None else import_attribute(spec, "SPEC")
        if function is not None and not callable(function):
            raise TypeError(f"export: SPEC must be a function; got {spec!r}, {describe(function)}. Name a function.")
    arguments = None if function is None else function()  # An error in it is its author's, and keeps its traceback.
    with readable_errors(), Console(stderr=True).status("exporting"):
        if checkpoint is not None:
            config, params = _restored(checkpoint)
            export_language_model(out, config.model, params, **options)
        else:
            rs.export.save(out, **(_arguments(str(spec), arguments) | options))
    _print_written(Console(highlight=False), out)


def parse_platforms(value: str) -> list[str]:
    """The platforms of `--platforms cpu,cuda`, without duplicates.

    Raises:
        ValueError: if one is unknown.

    Example:
        >>> parse_platforms("cpu, tpu")
        ['cpu', 'tpu']
    """
    names = list(dict.fromkeys(part.strip() for part in value.split(",")))
    if not set(names) <= set(PLATFORMS):
        raise ValueError(
            f"export: --platforms must be some of {', '.join(PLATFORMS)}, with commas between; got {value!r}."
        )
    return names


def _restored(checkpoint: Path) -> tuple[TrainConfig, Any]:
    """The options and the parameters of the last checkpoint of a run."""
    run = RunDirectory(checkpoint)
    if not config_file(run).is_file():
        raise FileNotFoundError(
            f"export: --checkpoint must be the directory of a run of `rnnscan train`; got no {config_file(run)}. Check "
            "the path."
        )
    config, _, _ = read_run(run)
    if not run.latest_step():
        raise ValueError(
            f"export: --checkpoint must hold a checkpoint; got {checkpoint}, where training stopped before its first. "
            f"Resume it with: rnnscan train --resume --out {shlex.quote(str(checkpoint))}"
        )
    with warnings.catch_warnings(record=True, action="always") as caught:
        state = run.restore(begin_language_model(config))
    for warning in caught:
        print_warning(warning.message)
    return config, state.params


def _arguments(spec: str, returned: Any) -> dict[str, Any]:
    """What the function of SPEC returned, as arguments of `save`."""
    _, *parameters = inspect.signature(rs.export.save).parameters.values()
    in_order = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    needed = [one.name for one in parameters if one.default is one.empty]
    if isinstance(returned, tuple) and len(needed) <= len(returned) <= len(in_order):
        return dict(zip(in_order, returned, strict=False))
    if isinstance(returned, Mapping) and set(needed) <= set(returned) <= {one.name for one in parameters}:
        return dict(returned)
    shown = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else describe(returned)
    shown = f"a dictionary of {', '.join(map(repr, returned))}" if isinstance(returned, Mapping) else shown
    raise TypeError(
        "export: SPEC must return the arguments of rnnscan.export.save after the path, (fn, params, inputs) or a "
        f"dictionary of them; got {shown} from {spec!r}."
    )


def _print_written(console: Console, out: Path) -> None:
    """Show what an export holds, from its manifest."""
    manifest = json.loads((out / "manifest.json").read_text())
    functions = ", ".join(next(iter(manifest["programs"].values())))
    size = manifest["files"][manifest["parameters_file"]]["bytes"]
    store = manifest["store"]
    stored = "" if store["dtype"] is None else f" as {store['dtype']}"
    error = store["largest_error_of_outputs"]
    console.print(f"Written to {out}: {functions}, for {', '.join(manifest['programs'])}.")
    console.print(
        f"{len(manifest['parameters'])} parameters{stored}, {readable_bytes(size)}."
        + ("" if error is None else f" The largest error of an output is {error:.2g}.")
    )
    if manifest["vocabulary_file"] is not None:
        console.print(f"Generate text with: rnnscan run {shlex.quote(str(out))} --prompt TEXT")
