"""`rnnscan train`: train a byte-level language model on text, and evaluate it."""

import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from rnnscan.cli import INTERRUPTED
from rnnscan.cli.memory_limit import check_model_fits
from rnnscan.cli.options import (
    Batch,
    Cell,
    Coordinator,
    Embedding,
    Hidden,
    JoinTimeout,
    Layers,
    Mesh,
    Processes,
    ProcessId,
    Recompute,
    Seed,
    Segment,
    Window,
    config_of,
    count_kept_bytes,
    join,
    option,
    parse_mesh,
    parse_recompute,
    parse_segment,
    print_error,
    print_warning,
    readable_errors,
)
from rnnscan.cli.report import print_beginning, print_held_out, print_sample, print_stopped
from rnnscan.train import (
    RunDirectory,
    Stopped,
    Text,
    TrainConfig,
    TrainState,
    begin_language_model,
    begin_on_mesh,
    bits_per_byte,
    make_mesh,
    read_text,
    train_language_model,
)
from rnnscan.train.language_training import check_streams
from rnnscan.train.processes import JOIN_TIMEOUT, check_agreement, in_all, in_first, waiting_for_the_verdict
from rnnscan.train.text import Ranges, check_enough
from rnnscan.train.text_parts import fingerprint, own_ranges
from rnnscan.train.text_run import begin_run, check_free, config_file, read_run


def train(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Text to train on; none: Python's standard library. Every tenth file is held out; of fewer than ten "
            "files, the last tenth of each.",
        ),
    ] = None,
    cell: Cell = None,
    hidden: Hidden = None,
    layers: Layers = None,
    embedding: Embedding = None,
    batch: Batch = None,
    window: Window = None,
    steps: Annotated[int | None, option("steps", "Updates of the parameters, one per window.", min=1)] = None,
    learning_rate: Annotated[float | None, option("learning_rate", "Peak learning rate of AdamW.")] = None,
    seed: Seed = None,
    recompute: Recompute = None,
    segment: Segment = None,
    checkpoint_every: Annotated[
        int | None, option("checkpoint_every", "Updates between two checkpoints.", min=1)
    ] = None,
    mesh: Mesh = None,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process_id: ProcessId = None,
    join_timeout: JoinTimeout = JOIN_TIMEOUT,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The run's directory.")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    check_finite: Annotated[
        bool,
        typer.Option(
            "--check-finite",
            help="Stop at the first update that is not finite, say where it began, and keep what reproduces it.",
        ),
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard too, in --out.")
    ] = False,
    sample: Annotated[int, typer.Option(metavar="N", help="Bytes of text to sample at the end.", min=0)] = 400,
    temperature: Annotated[float, typer.Option(help="Of the sample; below 1: likelier text.")] = 0.7,
) -> None:
    """Train a byte-level language model, and evaluate it.

    --recompute and --segment choose what is kept in memory for the backward pass.
    The kept bytes are shown with those of plain autodiff.

    Several processes train together with --coordinator, --processes and --process-id. All get the same other options.
    """
    with readable_errors():
        join(coordinator, processes, process_id, join_timeout)

    def checked() -> tuple[RunDirectory, TrainConfig, Text, str | None, jax.sharding.Mesh | None]:
        _check_choices(resume=resume, overwrite=overwrite, temperature=temperature, learning_rate=learning_rate)
        if check_finite and jax.process_count() > 1:
            raise ValueError(f"train: --check-finite needs a single process; got {jax.process_count()}. Leave it out.")
        options = {
            "cell": None if cell is None else cell.value,
            "hidden": hidden,
            "layers": layers,
            "embedding": embedding,
            "batch": batch,
            "window": window,
            "steps": steps,
            "learning_rate": learning_rate,
            "seed": seed,
            "recompute": parse_recompute(recompute) if recompute else None,
            "segment": None if segment is None else parse_segment(segment),
            "checkpoint_every": checkpoint_every,
        }
        run = RunDirectory(out, tensorboard=tensorboard)
        devices = _mesh_of_run(mesh)
        if resume:
            return run, *_read_resumed(run, options, files or [], devices), devices
        return run, *_prepare(run, options, files or [], devices, overwrite=overwrite), devices

    with _ending_together(), readable_errors():
        run, config, text, saved, devices = in_all(checked)
        _check_processes(config, text, devices, resume=resume, sample=sample, temperature=temperature)
        sha256 = fingerprint(text)
        if saved is not None:
            _check_text(run, text, sha256, saved)
        state = _restore(run, config, devices) if resume else None
        # It traces the model, and so rejects unknown names.
        kept, kept_by_autodiff = (count_kept_bytes(config, memory) for memory in (config.memory, None))
        if not resume:
            in_first(lambda: begin_run(run, config, files=_resolved(files or []), sha256=sha256))
    console = Console(highlight=False, quiet=jax.process_index() > 0)
    print_beginning(console, config, text, kept=kept, kept_by_autodiff=kept_by_autodiff)
    with _ending_together(), _stopping_early(run):
        if state is not None and int(state.step) == config.steps:
            console.print(f"Already finished at step {config.steps}; evaluating.")
        else:
            if state is not None:
                console.print(f"Resuming from step {int(state.step)} of {config.steps}.")
            state = train_language_model(config, text, state=state, run=run, mesh=devices, check_finite=check_finite)
        bits = bits_per_byte(config.model, state.params, text.held_out, rows=config.batch, window=config.window)
        if not console.quiet:
            print_held_out(console, config, text, bits)
        if sample:
            key = jax.random.fold_in(jax.random.key(config.seed), config.steps)
            print_sample(console, config.model.sample(state.params, key, sample, temperature=temperature))
    console.print(f"Written to {out}: config.json, metrics.jsonl, checkpoints.")


@contextmanager
def _ending_together() -> Iterator[None]:
    """End one of several processes immediately after an error, because at exit it would wait for the others."""
    try:
        with waiting_for_the_verdict():
            yield
    except Exception as error:
        if isinstance(error, typer.Exit) or jax.process_count() == 1:
            raise
        traceback.print_exc()
        os._exit(1)


@contextmanager
def _stopping_early(run: RunDirectory) -> Iterator[None]:
    """After Ctrl-C or SIGTERM, show how to resume; for losses that are not finite, show only the error."""
    try:
        yield
    except KeyboardInterrupt:
        print_stopped(run)
        raise typer.Exit(INTERRUPTED) from None
    except Stopped:
        if not jax.process_index():
            print_stopped(run)
        raise
    except FloatingPointError as error:
        print_error(error)
        raise typer.Exit(1) from error


def _check_choices(*, resume: bool, overwrite: bool, temperature: float, learning_rate: float | None) -> None:
    if resume and overwrite:
        raise ValueError("train: a run is resumed or overwritten; got both --resume and --overwrite. Drop one of them.")
    for name, value in (("temperature", temperature), ("learning-rate", learning_rate)):
        if value is not None and not value > 0:
            raise ValueError(f"train: --{name} must be above 0; got {value}.")


def _mesh_of_run(mesh: str | None) -> jax.sharding.Mesh | None:
    """The mesh of `--mesh`. Without it several processes share the text streams."""
    if mesh is not None:
        return parse_mesh(mesh)
    return make_mesh({"data": jax.device_count()}) if jax.process_count() > 1 else None


def _check_processes(config: TrainConfig, text: Text, mesh: jax.sharding.Mesh | None, **choices: Any) -> None:
    """Reject processes that would train differently."""
    options = {f"--{field.replace('_', '-')}": value for field, value in asdict(config).items()}
    sizes = None if mesh is None else dict(mesh.shape)
    choices = {f"--{name}": value for name, value in choices.items()}
    check_agreement(**options, **choices, text=f"of {text.train.size} + {text.held_out.size} bytes", mesh=sizes)


def _prepare(
    run: RunDirectory,
    options: Mapping[str, Any],
    files: Sequence[Path],
    mesh: jax.sharding.Mesh | None,
    *,
    overwrite: bool,
) -> tuple[TrainConfig, Text, None]:
    """The options and text of a new run, after their checks. It has no saved fingerprint."""
    config = config_of(options)
    if mesh is None:
        check_model_fits(config)
    else:
        begin_on_mesh(config, mesh)
    check_free(run, overwrite=overwrite)
    text = read_text(files, _own_ranges(config, mesh))
    check_enough(text, batch=config.batch, window=config.window)
    return config, text, None


def _read_resumed(
    run: RunDirectory, options: Mapping[str, Any], files: Sequence[Path], mesh: jax.sharding.Mesh | None
) -> tuple[TrainConfig, Text, str]:
    """The options, the text and its saved fingerprint of the run to resume. The options must not contradict them."""
    config, saved_files, sha256 = read_run(run)
    for field, value in options.items():
        if value is not None:
            _check_same(run, f"--{field.replace('_', '-')}", value, getattr(config, field))
    if files:
        source = ", ".join(saved_files) or "Python's standard library"
        _check_same(run, "FILE", ", ".join(_resolved(files)), source)
    return config, read_text([Path(path) for path in saved_files], _own_ranges(config, mesh)), sha256


def _own_ranges(config: TrainConfig, mesh: jax.sharding.Mesh | None) -> Callable[[int], Ranges] | None:
    """Each of several processes reads the streams of its devices only."""
    if mesh is None or jax.process_count() == 1:
        return None
    check_streams(config, mesh)
    return own_ranges(config.batch, mesh)


def _check_text(run: RunDirectory, text: Text, sha256: str, saved: str) -> None:
    """Reject a text that has changed since the run began."""
    # Version 0.2 wrote the fingerprint of the whole text.
    if saved not in (sha256, text.sha256 if text.read is None else sha256):
        raise ValueError(
            f"train: with --resume, the text must not change; got another content of the files in {config_file(run)}. "
            "Restore it (each version of Python has another standard library), or start another run with --out."
        )


def _restore(run: RunDirectory, config: TrainConfig, mesh: jax.sharding.Mesh | None) -> TrainState:
    """The state of the last checkpoint, which may be that of another mesh or another number of processes."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        state = run.restore(begin_language_model(config) if mesh is None else begin_on_mesh(config, mesh))
    for warning in caught:
        print_warning(warning.message)
    return state


def _check_same(run: RunDirectory, option: str, requested: Any, saved: Any) -> None:
    if requested != saved:
        why = " The learning rate's decay depends on --steps." if option == "--steps" else ""
        raise ValueError(
            f"train: with --resume, {option} must not change; got {requested} on the command line and {saved} in "
            f"{config_file(run)}.{why} Leave it out, or start another run with --out."
        )


def _resolved(files: Sequence[Path]) -> list[str]:
    return sorted({str(path.resolve()) for path in files})
