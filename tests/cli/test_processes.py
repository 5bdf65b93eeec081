"""Runs of the command in processes of their own: killed, interrupted, stopped, and with a package missing."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from typer.testing import Result

import rnnscan as rs


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


def train_and_signal(text_file: Path, out: Path, signals: str) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own, which sends itself signals in step 9."""
    script = f"""
import os, signal
from rnnscan.cli import main
from rnnscan.train import RunDirectory

log = RunDirectory.log

def log_and_signal(run, step, metrics):
    log(run, step, metrics)
    if step == 9:
        for number in ({signals},):
            os.kill(os.getpid(), number)

# A process of a shell's background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
RunDirectory.log = log_and_signal
main()
"""
    arguments = ["train", str(text_file), *SMALL, "--out", str(out)]
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_sigterm_and_ctrl_c_save_and_say_how_to_resume(
    rnnscan: Command, text_file: Path, tmp_path: Path, name: str, code: int
) -> None:
    out, whole = tmp_path / "a stopped run", tmp_path / "whole"

    process = train_and_signal(text_file, out, f"signal.{name}")

    assert process.returncode == code, process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1] == (
        f"Stopped at step 9. Resume with: rnnscan train --resume --out '{out}' (from step 9)."
    )
    assert (name == "SIGINT") == ("Press it again to stop at once." in process.stderr)
    resumed = rnnscan("train", "--resume", "--out", out)
    assert resumed.exit_code == 0
    assert "Resuming from step 9 of " in resumed.stdout
    assert rnnscan("train", text_file, *SMALL, "--out", whole).exit_code == 0
    assert losses(out) == losses(whole)


def test_a_second_ctrl_c_stops_at_once(rnnscan: Command, text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "a run"

    process = train_and_signal(text_file, out, "signal.SIGINT, signal.SIGINT")

    assert process.returncode == 130, process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1] == (
        f"Stopped at step 9. Resume with: rnnscan train --resume --out '{out}' (from step 5)."
    )
    resumed = rnnscan("train", "--resume", "--out", out, "--sample", "40")
    assert resumed.exit_code == 0, resumed.output
    assert len(losses(out)) == 12


@pytest.mark.parametrize("module", ["typer", "rich", "optax", "orbax.checkpoint", "tqdm"])
def test_a_missing_package_is_one_line_that_says_what_to_install(module: str) -> None:
    script = f"import sys; sys.modules[{module!r}] = None; from rnnscan.cli import main; main()"
    process = subprocess.run([sys.executable, "-c", script, "train"], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout == ""
    assert re.fullmatch(
        rf'rnnscan: the command line needs the extra "train"; got no {module}(\.\w+)?\. '
        r'Run pip install "\.\[train\]" in the checkout of rnnscan\.\n',
        process.stderr,
    )


def test_a_broken_package_is_its_own_error() -> None:
    script = (
        "import importlib.abc, sys\n"
        "class Broken(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'tqdm': raise ImportError('tqdm is broken')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "from rnnscan.cli import main\n"
        "main()\n"
    )
    process = subprocess.run([sys.executable, "-c", script, "train"], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.endswith("ImportError: tqdm is broken\n")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A streaming sum."""
    folder = tmp_path_factory.mktemp("export") / "sum"

    class Sum:
        def initial_carry(self, x: jax.Array) -> jax.Array:
            return jnp.zeros_like(x)

        def __call__(self, params: None, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            return carry + x, carry + x

    example = [jax.ShapeDtypeStruct((3, 1), jnp.float32)]
    rs.export.save(folder, lambda _, xs: jnp.cumsum(xs, 0), {}, example, ["cpu"], cell=Sum())
    return folder


def started(*arguments: str | Path, script: str = "from rnnscan.cli import main; main()") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)


def test_a_stream_answers_each_line_and_ends_by_ctrl_c(exported: Path) -> None:
    with started("run", exported, "--stream") as process:
        for number, answer in ((1, "[1.0]"), (2, "[3.0]"), (4, "[7.0]")):
            process.stdin.write(f'{{"xs": [{number}]}}\n')
            assert process.stdout.readline() == answer + "\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_a_stream_into_a_file_that_is_interrupted_leaves_the_old_file(exported: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    with started("run", exported, "--stream", "--out", out) as process:
        process.stdin.write('{"xs": [1]}\n')
        while not (unfinished := tmp_path / "out.jsonl.unfinished").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == ""
    assert out.read_text() == "old"
    assert not unfinished.exists()


def test_a_ctrl_c_that_python_drops_ends_a_stream(exported: Path) -> None:
    script = """
import os, signal, warnings
warnings.simplefilter("ignore")  # Before `main` does it for a version of jax with bugs.
import rnnscan.cli.run as run
from rnnscan.cli import main

to_line = run.to_line

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def to_line_and_interrupt(output):
    Dropped()
    return to_line(output)

run.to_line = to_line_and_interrupt
main()
"""
    with started("run", exported, "--stream", script=script) as process:
        process.stdin.write('{"xs": [1]}\n')
        assert process.wait(timeout=60) == 130
        assert (process.stdout.read(), process.stderr.read()) == ("[1.0]\n", "")


def test_a_reader_that_goes_ends_a_stream_without_a_traceback(exported: Path) -> None:
    with started("run", exported, "--stream") as process:
        process.stdin.write('{"xs": [1]}\n')
        assert process.stdout.readline() == "[1.0]\n"
        process.stdout.close()
        process.stdin.write('{"xs": [1]}\n{"xs": [1]}\n')
        process.stdin.close()
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == ""
