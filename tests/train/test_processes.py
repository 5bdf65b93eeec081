"""Training in several processes on this machine: equal to one, killed, resumed, stopped, and refused."""

import json
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from rnnscan.train import RunDirectory
from several_processes import COMMAND, HEARTBEAT, ROOT, end_all, free_port, names_the_dead, start, wait_until


SCRIPT = Path(__file__).with_name("joined_run.py")
TRAIN = ["train", "--hidden", "8", "--embedding", "4", "--batch", "4", "--window", "32", "--checkpoint-every", "10"]


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"recurrent networks " * 80)
    return path


def join(number, processes, port):
    return ["--coordinator", f"localhost:{port}", "--processes", processes, "--process-id", number]


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def read_of(log, number):
    """The ranges of the file that a process has read."""
    lines = (log / f"out.{number}").read_text().splitlines()
    return [tuple(map(int, line.split()[1:])) for line in lines if line.startswith("read ")]


def train_alone(log, *arguments):
    command = ["-c", COMMAND, "train", *arguments, "--sample", "0"]
    assert end_all([start(command, log, 0)], seconds=120) == [0], (log / "err.0").read_text()


# Process 1 dies before this step. Each says which bytes of files it reads.
DIES_AT_56 = f"""
import os, signal
from rnnscan.train import loop, processes, text
check, batches, read = loop.check_global, [], text._read_into

def read_and_say(here, path, start):
    print("read", start, start + here.size, flush=True)
    read(here, path, start)

def check_or_die(tree, name):
    batches.extend([name] if name == "the batch" else [])
    if len(batches) == 56 and processes.jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    check(tree, name)

loop.check_global, text._read_into = check_or_die, read_and_say
{COMMAND}"""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_as_one_and_a_killed_run_goes_on_with_another_number(count, text_file, tmp_path):
    whole, out, log = tmp_path / "whole", tmp_path / "out", tmp_path / "log"
    options = [*TRAIN[1:], "--steps", "60"]
    port = free_port()
    command = ["-c", DIES_AT_56, "train", text_file, *options, "--out", out]
    started = [start([*command, *join(number, count, port)], log, number) for number in range(count)]
    train_alone(tmp_path / "alone", text_file, *options, "--out", whole)
    codes = end_all(started)

    assert codes.pop(1) == -signal.SIGKILL
    assert all(codes), codes
    for survivor in {*range(count)} - {1}:
        assert names_the_dead(log, survivor, 1), (log / f"err.{survivor}").read_text()
        # Its quarter or half of the training bytes in whole blocks, and the held-out bytes.
        (first, last), held_out = read_of(log, survivor)
        assert abs(first - survivor * 1368 // count) <= 4
        assert abs(last - (survivor + 1) * 1368 // count) <= 4
        assert held_out == (1368, 1520)
    assert len(losses(out)) == 55
    assert len(list((out / "checkpoints" / "50" / "state").glob("ocdbt.process_*"))) == count
    np.testing.assert_allclose(losses(out), losses(whole)[:55], rtol=1e-5)

    train_alone(tmp_path / "resumed", "--resume", "--out", out)
    assert "Resuming from step 50 of 60." in (tmp_path / "resumed" / "out.0").read_text()
    np.testing.assert_allclose(losses(out), losses(whole), rtol=1e-5)


def test_processes_with_other_options_or_other_code_are_refused_in_all_before_anything_is_written(text_file, tmp_path):
    out, log, port, other = tmp_path / "out", tmp_path / "log", free_port(), tmp_path / "other"
    shutil.copytree(ROOT / "rnnscan", other / "rnnscan", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "rnnscan" / "memory.py").open("a") as file:
        file.write("# Another version.\n")
    command = ["-c", COMMAND, *TRAIN, text_file, "--out", out]
    more = [["--steps", "5"], ["--steps", "6", "--mesh", "model=2"]]
    started = [
        start([*command, *more[number], *join(number, 2, port)], log, number, code=code)
        for number, code in enumerate([ROOT, other])
    ]
    assert end_all(started) == [2, 2]
    messages = [(log / f"err.{number}").read_text() for number in (0, 1)]
    assert messages[0] == messages[1]
    message = " ".join(messages[0].split())
    assert message.startswith(
        "Error: train: all processes must have the same options and the same code; got --steps 5 "
    )
    assert "in process 0 and 6 in process 1" in message
    assert "mesh {'data': 2, 'model': 1} in process 0 and {'data': 1, 'model': 2} in process 1" in message
    assert "version of rnnscan " in message
    assert "version of jax" not in message
    assert not out.exists()


def test_who_waits_for_a_process_that_never_joins_ends_with_an_error(text_file, tmp_path):
    command = ["-c", COMMAND, *TRAIN, text_file, "--out", tmp_path / "out", "--join-timeout", 2]
    ports = [free_port(), free_port()]
    started = [start([*command, *join(number, 2, ports[number])], tmp_path / "log", number) for number in (0, 1)]
    assert end_all(started) == [1, 1]
    for number in (0, 1):
        message = (tmp_path / "log" / f"err.{number}").read_text().splitlines()[-1]
        assert message.startswith(
            "Error: join_processes: all processes must join within 2 seconds; got fewer at "
            f"localhost:{ports[number]}, while process {number} of 2 waited. Look for one that ended before it joined."
        )
    assert not (tmp_path / "out").exists()


def started_run(folder, log, steps, count):
    """Processes of `joined_run.py`, and the mark that all have joined."""
    port = free_port()
    command = [SCRIPT, folder, steps, port, count]
    return [start([*command, number, HEARTBEAT], log, number) for number in range(count)], folder / f"joined.{port}"


def test_sigterm_of_one_process_stops_all_after_the_same_step(tmp_path):
    run, log = RunDirectory(tmp_path / "run"), tmp_path / "log"
    started, _ = started_run(Path(run.path), log, 100_000, 2)
    wait_until(lambda: run.logged_step() > 2, started)
    started[1].send_signal(signal.SIGTERM)
    assert end_all(started) == [143, 143]
    assert run.latest_step() == run.logged_step() > 2
    for number in (0, 1):
        state, batch = (log / f"out.{number}").read_text().splitlines()[-2:]
        assert state.startswith("fit: with several processes, state must be on a mesh of all their devices; got state")
        assert batch.startswith("fit: with several processes, the batch must be on a mesh of all their devices; got ")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_20_kills_at_random_moments_lose_nothing(part, tmp_path):
    """Five kills in each part, and then another number of processes resumes the run."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    generator, run, steps = random.Random(seed), RunDirectory(tmp_path / "run"), 100_000
    for kill in range(5):
        count = (2, 4)[(part + kill) % 2]
        victim, log, before = generator.randrange(count), tmp_path / f"log{kill}", run.latest_step()
        started, joined = started_run(Path(run.path), log, steps, count)
        wait_until(joined.exists, started)
        if kill % 4 != 1:  # One in four while it starts, restores or compiles; the others while it trains and saves.
            wait_until(lambda logged=run.logged_step(): run.logged_step() > logged, started)
        time.sleep(generator.uniform(0, 3))
        started[victim].kill()
        since = time.monotonic()
        codes = end_all(started)
        print(
            f"{count} processes, {victim} killed: {before} -> {run.latest_step()} saved, {run.logged_step()} logged, "
            f"others ended after {time.monotonic() - since:.1f} s with {codes}"
        )
        assert all(codes), codes
        for survivor in {*range(count)} - {victim}:
            assert names_the_dead(log, survivor, victim), (log / f"err.{survivor}").read_text()
        assert run.latest_step() >= before
    assert run.latest_step() > 0

    steps = run.latest_step() + 10
    whole = RunDirectory(tmp_path / "whole")
    for count, directory in ((4, run), (1, whole)):
        started, _ = started_run(Path(directory.path), tmp_path / "log", steps, count)
        assert end_all(started, seconds=300) == [0] * count
    lines = [[line["loss"] for line in directory.read_metrics()] for directory in (run, whole)]
    assert len(lines[0]) == len(lines[1]) == steps
    np.testing.assert_allclose(*lines, rtol=1e-4)
    assert not list(run.checkpoints.glob("*.*"))
