"""`rnnscan run`: an exported function on arrays from a file or stdin, or an exported language model's text."""

import codecs
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import rnnscan as rs
from rnnscan._util.messages import listing
from rnnscan.cli.arrays import Record, check_npz_names, read_records, to_line, to_npz
from rnnscan.cli.interrupts import raise_if_interrupted
from rnnscan.cli.options import readable_errors
from rnnscan.cli.outputs import written_whole
from rnnscan.cli.report import printable


DEFAULTS: dict[str, Any] = {"length": 400, "temperature": 0.7}


class Format(StrEnum):
    """The forms of outputs."""

    JSONL = "jsonl"
    NPZ = "npz"


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that rnnscan export wrote.")],
    input: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT",
            help="An npz file with the inputs, or lines of JSON with the inputs by name. - or none: stdin.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outputs into this file.", show_default="stdout")
    ] = None,
    format: Annotated[
        Format | None, typer.Option(help="The form of the outputs.", show_default="npz if FILE is .npz, else jsonl")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Each line, or index of the first axis, is a step; the carry is kept.")
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Generate text that continues this one.", show_default="a new line"),
    ] = None,
    no_echo: Annotated[bool, typer.Option("--no-echo", help="Write the continuation without TEXT.")] = False,
    length: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens to generate.", show_default=str(DEFAULTS["length"]), min=0)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Of the text; below 1: likelier, 0: likeliest.", show_default=str(DEFAULTS["temperature"]), min=0
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the text.", show_default="0", min=0)] = None,
) -> None:
    """Run an exported function, without its code; or generate text with an exported language model.

    An object on each line holds the inputs by name: {"xs": [[[0.1, 0.2]]]}. Each line gives one line of outputs.
    With --stream a line holds one step of the first input, and gives its output immediately.
    """
    with readable_errors():
        loaded = rs.export.load(folder)
        options = {"prompt": prompt, "length": length, "temperature": temperature, "seed": seed}
        text_options = {name: value for name, value in options.items() if value is not None}
        text_options |= {"no-echo": True} if no_echo else {}
        generates = bool(text_options) or (loaded.vocabulary is not None and input is None and not stream)
        _check_choices(loaded, folder, text_options, generates=generates, path=input, stream=stream, format=format)
        tokens = _text(loaded, DEFAULTS | text_options) if generates else None
        if format is None:
            format = Format.NPZ if out is not None and out.suffix == ".npz" else Format.JSONL
        _check_format(loaded, format, out)
    if tokens is not None:
        _write_text(tokens, out)
        return
    with ExitStack() as stack:
        with readable_errors():
            file = sys.stdin.buffer if input in (None, "-") else stack.enter_context(_opened(str(input)))
        outputs = _streamed(loaded, file) if stream else _predicted(loaded, file)
        if format is Format.NPZ:
            _write_npz(outputs, out, stacked=stream)
        else:
            _write_lines(outputs, out)


def _opened(path: str) -> Any:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise ValueError(
            f"run: INPUT must be a file of inputs, or - for standard input; got {path!r}, which cannot be read "
            f"({error.strerror})."
        ) from error


def _check_choices(
    loaded: Any,
    folder: Path,
    text_options: dict[str, Any],
    *,
    generates: bool,
    path: str | None,
    stream: bool,
    format: Format | None,
) -> None:
    if generates and loaded.vocabulary is None:
        raise ValueError(
            f"run: --{next(iter(text_options))} must be given with an exported language model; got {folder}, which has "
            "no vocabulary. Leave it out."
        )
    if generates and (path is not None or stream or format is not None):
        raise ValueError(
            "run: text is generated, or inputs are run; got --prompt, --no-echo, --length, --temperature or --seed "
            "with INPUT, --stream or --format. Drop one of them."
        )
    if stream and not loaded.streams:
        raise ValueError(f"run: --stream must be given with a function that streams; got {folder}. Drop --stream.")


def _check_format(loaded: Any, format: Format, out: Path | None) -> None:
    results = loaded.manifest.results()
    outputs = jax.tree.leaves(results)
    if format is Format.NPZ:
        check_npz_names(results)
    if format is Format.JSONL and any(spec.dtype.startswith("complex") for spec in outputs):
        raise ValueError("run: JSON has no complex numbers; got outputs of complex dtypes. Use --format npz.")
    if format is Format.NPZ and out is None and sys.stdout.isatty():
        raise ValueError("run: an npz file must not go to a terminal; got no --out. Write --out FILE.npz.")


def _text(loaded: Any, options: dict[str, Any]) -> Iterator[bytes]:
    """The prompt, if it is given and echoed, and the tokens that continue it."""
    echo = "prompt" in options and "no-echo" not in options
    tokens = loaded.generate(**{name: value for name, value in options.items() if name != "no-echo"})
    return chain([options["prompt"].encode()], tokens) if echo else tokens


def _predicted(loaded: Any, file: Any) -> Iterator[Any]:
    """The outputs for each record."""
    for record in _records(file, loaded.manifest.inputs):
        with _errors_in(record.place):
            outputs = loaded.predict(**record.inputs)
        yield outputs


def _streamed(loaded: Any, file: Any) -> Iterator[Any]:
    """The output of each step."""
    specs, carry = loaded.manifest.stream.x, None
    name = next(iter(loaded.manifest.inputs))
    for record in _records(file, {name: specs}):
        with _errors_in(record.place):
            steps = _steps_of(record, name)
        for x in steps:
            with _errors_in(record.place):
                carry = loaded.init(**_sizes_of(x, specs)) if carry is None else carry
                carry, y = loaded.step(carry, x)
            yield y


def _records(file: Any, specs: Mapping[str, Any]) -> Iterator[Record]:
    records = read_records(file, specs)
    while True:
        raise_if_interrupted()
        with readable_errors():
            record = next(records, None)
        if record is None:
            return
        yield record


def _steps_of(record: Record, name: str) -> Iterator[Any]:
    """The inputs of the steps of a record: a line has one, and an npz file those of the whole sequence."""
    if set(record.inputs) != {name}:
        raise ValueError(
            f"run: with --stream the input must be one step of {name!r} alone; got {listing(record.inputs)}."
        )
    x = record.inputs[name]
    if not record.is_npz:
        return iter([x])
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(x)}
    if len(lengths) != 1 or () in lengths:
        raise ValueError(f"run: with --stream the arrays of {name!r} must have the same number of steps, on axis 0.")
    return (jax.tree.map(lambda leaf, step=step: leaf[step], x) for step in range(lengths.pop()[0]))


def _sizes_of(x: Any, specs: Any) -> dict[str, int]:
    """The sizes of the dynamic axes of one step's input."""
    sizes: dict[str, int] = {}
    for leaf, spec in zip(jax.tree.leaves(x), jax.tree.leaves(specs), strict=False):
        named = zip(getattr(leaf, "shape", ()), spec.shape, strict=False)
        sizes |= {name: size for size, name in named if isinstance(name, str) and name.isidentifier()}
    return sizes


@contextmanager
def _errors_in(place: str) -> Iterator[None]:
    """Show an error with the place of the input that it is about, and exit with 2."""
    with readable_errors():
        try:
            yield
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: {error}") from error


def _write_lines(outputs: Iterator[Any], out: Path | None) -> None:
    if out is None:
        for each in outputs:
            print(to_line(each), flush=True)
        return
    with written_whole(out) as file:
        for each in outputs:
            file.write(to_line(each).encode() + b"\n")


def _write_npz(outputs: Iterator[Any], out: Path | None, *, stacked: bool) -> None:
    """Write the outputs of one call, or those of all steps as one array of each."""
    every = [jax.tree.map(np.asarray, each) for each in outputs]
    with readable_errors():
        if not every or (len(every) > 1 and not stacked):
            raise ValueError(
                f"run: an npz file must have the outputs of one call; got {len(every)} lines. Use --format jsonl, or "
                "--stream for steps of a sequence."
            )
    content = to_npz(jax.tree.map(lambda *leaves: np.stack(leaves), *every) if stacked else every[0])
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    with written_whole(out) as file:
        file.write(content)


def _write_text(tokens: Iterator[bytes], out: Path | None) -> None:
    """Show text as it is drawn, or write its bytes into a file."""
    if out is not None:
        with written_whole(out) as file:
            file.writelines(tokens)
        return
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        print(printable(decoder.decode(token)), end="", flush=True)
    print(printable(decoder.decode(b"", final=True)))
