"""Runs of the command in processes of their own: killed, interrupted, stopped, and with a package missing."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result


Command = Callable[..., Result]

MODEL = ["--hidden", "8", "--embedding", "4", "--batch", "4", "--window", "32", "--recompute", "gates"]
SMALL = [*MODEL, "--steps", "12", "--checkpoint-every", "5", "--sample", "40"]


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def test_a_killed_run_that_is_resumed_has_the_losses_of_an_undisturbed_one(
    rnnscan: Command, text_file: Path, tmp_path: Path
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    script = """
import os, signal
from rnnscan.cli import main
from rnnscan.train import RunDirectory

log = RunDirectory.log

def log_and_die(run, step, metrics):
    log(run, step, metrics)
    if step == 9:
        with run.metrics_file.open("a") as file:
            file.write('{"step": 10, "lo')
        os.kill(os.getpid(), signal.SIGKILL)

RunDirectory.log = log_and_die
main()
"""
    arguments = ["train", str(text_file), *SMALL, "--out", str(killed)]
    process = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert (killed / "metrics.jsonl").read_text().count("\n") == 9

    resumed = rnnscan("train", "--resume", "--out", killed, "--sample", "40")
    undisturbed = rnnscan("train", text_file, *SMALL, "--out", whole)

    assert resumed.exit_code == undisturbed.exit_code == 0, resumed.output + undisturbed.output
    assert losses(killed) == losses(whole)
    assert len(losses(whole)) == 12
    shown = resumed.stdout.replace(str(killed), str(whole))
    assert shown.replace("Resuming from step 5 of 12.\n", "", 1) == undisturbed.stdout != shown


def test_an_interrupted_run_says_how_to_go_on(rnnscan: Command, text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "a run"
    script = """
import os, signal
from rnnscan.cli import main
from rnnscan.train import RunDirectory

log = RunDirectory.log

def log_and_interrupt(run, step, metrics):
    log(run, step, metrics)
    if step == 9:
        os.kill(os.getpid(), signal.SIGINT)

RunDirectory.log = log_and_interrupt
main()
"""
    arguments = ["train", str(text_file), *SMALL, "--out", str(out)]
    process = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)

    assert process.returncode == 130
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1] == (
        f"Stopped at step 9. Resume with: rnnscan train --resume --out '{out}' (from step 5)."
    )
    resumed = rnnscan("train", "--resume", "--out", out, "--sample", "40")
    assert resumed.exit_code == 0, resumed.output
    assert len(losses(out)) == 12


def test_sigterm_saves_and_says_how_to_go_on(rnnscan: Command, text_file: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "stopped", tmp_path / "whole"
    script = """
import os, signal
from rnnscan.cli import main
from rnnscan.train import RunDirectory

log = RunDirectory.log

def log_and_terminate(run, step, metrics):
    log(run, step, metrics)
    if step == 9:
        os.kill(os.getpid(), signal.SIGTERM)

RunDirectory.log = log_and_terminate
main()
"""
    arguments = ["train", str(text_file), *SMALL, "--out", str(out)]
    process = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)

    assert process.returncode == 143, process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1] == (
        f"Stopped at step 9. Resume with: rnnscan train --resume --out {out} (from step 9)."
    )
    resumed = rnnscan("train", "--resume", "--out", out)
    assert resumed.exit_code == 0
    assert "Resuming from step 9 of " in resumed.stdout
    assert rnnscan("train", text_file, *SMALL, "--out", whole).exit_code == 0
    assert losses(out) == losses(whole)


@pytest.mark.parametrize("module", ["typer", "rich", "optax", "orbax.checkpoint", "tqdm"])
def test_a_missing_package_is_one_line_that_says_what_to_install(module: str) -> None:
    script = f"import sys; sys.modules[{module!r}] = None; from rnnscan.cli import main; main()"
    process = subprocess.run([sys.executable, "-c", script, "train"], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert module in process.stderr
    assert 'pip install ".[train]" in the checkout of rnnscan.' in process.stderr
