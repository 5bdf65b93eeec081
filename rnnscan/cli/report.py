"""What `rnnscan train` prints at its beginning and its end."""

import lzma
import shlex
import sys
import zlib

from rich.console import Console
from rich.table import Table

from rnnscan._byte_sizes import readable_bytes
from rnnscan.cli.options import memory_flags
from rnnscan.train import RunDirectory, Text, TrainConfig


def print_beginning(console: Console, config: TrainConfig, text: Text, *, kept: int, kept_by_autodiff: int) -> None:
    """Say what is trained on what, and what is kept in memory meanwhile.

    Args:
        console: where to print.
        config: the run's options.
        text: the text.
        kept: bytes kept between the forward and the backward pass under the run's memory choice.
        kept_by_autodiff: the same under plain autodiff.
    """
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
    """Show the model's bits a byte beside those of two compressors.

    Args:
        console: where to print.
        config: the run's options.
        text: the text.
        bits_per_byte: of the model on the held-out bytes.
    """
    held_out = text.held_out.tobytes()
    table = Table(title=f"{len(held_out):,} held-out bytes", title_justify="left")
    table.add_column("model or compressor")
    table.add_column("bits per byte", justify="right")
    table.add_row(f"{config.cell} after {config.steps} steps", f"{bits_per_byte:.3f}", style="bold")
    table.add_row("zlib, level 9", f"{8 * len(zlib.compress(held_out, 9)) / len(held_out):.3f}")
    table.add_row("lzma", f"{8 * len(lzma.compress(held_out)) / len(held_out):.3f}")
    console.print(table)


def print_sample(console: Console, sample: bytes) -> None:
    """Show text that the model wrote, without the control characters that may be in it.

    Args:
        console: where to print.
        sample: the text.
    """
    decoded = sample.decode(errors="replace")
    printable = [
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in decoded
    ]
    console.rule("a sample of what it writes", align="left")
    console.print("".join(printable).strip("\n"), markup=False)
    console.rule()


def print_stopped(run: RunDirectory) -> None:
    """Say how to go on with a run that Ctrl-C or SIGTERM stopped.

    Args:
        run: where it is written.
    """
    print(
        f"Stopped at step {run.logged_step()}. Go on with: rnnscan train --resume --out {shlex.quote(str(run.path))} "
        f"(from step {run.latest_step()}).",
        file=sys.stderr,
    )
