"""The output of `rnnscan train`."""

import lzma
import shlex
import sys
import zlib

from rich.console import Console
from rich.table import Table

from rnnscan._util.byte_sizes import readable_bytes
from rnnscan.cli.options import memory_flags
from rnnscan.train import RunDirectory, Text, TrainConfig


def print_beginning(console: Console, config: TrainConfig, text: Text, *, kept: int, kept_by_autodiff: int) -> None:
    """Show the text, the model, and the bytes kept for the backward pass by the memory choice and by plain autodiff."""
    summary = Table.grid(padding=(0, 2))
    summary.add_row(
        "Text",
        f"{readable_bytes(text.train.size)} to train on, {readable_bytes(text.held_out.size)} to evaluate on: "
        f"{text.description}",
    )
    summary.add_row(
        "Model",
        f"{config.cell}, {config.layers} x {config.hidden} units, on {config.batch} streams x {config.window} steps",
    )
    summary.add_row(
        "Memory",
        f"{readable_bytes(kept)} kept for the backward pass ({memory_flags(config) or 'default: every named value'}); "
        f"plain autodiff keeps {readable_bytes(kept_by_autodiff)}",
    )
    console.print(summary)


def print_held_out(console: Console, config: TrainConfig, text: Text, bits_per_byte: float) -> None:
    """Show the bits per byte of the model and of two compressors on the held-out bytes."""
    held_out = text.held_out.tobytes()
    table = Table(title=f"{len(held_out):,} held-out bytes", title_justify="left")
    table.add_column("model or compressor")
    table.add_column("bits per byte", justify="right")
    table.add_row(f"{config.cell} after {config.steps} steps", f"{bits_per_byte:.3f}", style="bold")
    table.add_row("zlib, level 9", f"{8 * len(zlib.compress(held_out, 9)) / len(held_out):.3f}")
    table.add_row("lzma", f"{8 * len(lzma.compress(held_out)) / len(held_out):.3f}")
    console.print(table)
    read = config.steps * config.batch * config.window
    console.print(
        f"The model trained on {readable_bytes(read)} of other text ({read / text.train.size:.2f} passes over it), "
        "and its parameters are fixed. The compressors adapt to the held-out bytes as they read them."
    )


def print_sample(console: Console, sample: bytes) -> None:
    """Show a sample of the model, without control characters."""
    console.rule("a sample of the model", align="left")
    console.print(printable(sample.decode(errors="replace")).strip("\n"), markup=False)
    console.rule()


def printable(text: str) -> str:
    r"""A text without control characters, which could change the terminal.

    Example:
        >>> printable("bell\a")
        'bell\ufffd'
    """
    shown = (letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return "".join(shown)


def print_stopped(run: RunDirectory) -> None:
    """Show how to resume a run that Ctrl-C or SIGTERM stopped."""
    print(
        f"Stopped at step {run.logged_step()}. Resume with: rnnscan train --resume --out {shlex.quote(str(run.path))} "
        f"(from step {run.latest_step()}).",
        file=sys.stderr,
    )
