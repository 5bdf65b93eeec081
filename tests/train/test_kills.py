import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from rnnscan.train import RunDirectory


SCRIPT = Path(__file__).with_name("killed_run.py")


def go_on_and_kill(run: RunDirectory, steps: int, *, seconds: float, at_once: bool) -> str:
    """Go on with a run in another process, kill it some seconds after its start or its first step, and say when."""
    before = run.logged_step()
    command = [sys.executable, str(SCRIPT), str(run.path), str(steps), "2"]
    with subprocess.Popen(command) as process:
        while not at_once and process.poll() is None and run.logged_step() <= before:
            time.sleep(0.01)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    left = [path.name for path in run.checkpoints.glob("*.*")] if run.checkpoints.exists() else []
    return f"after {seconds:.3f} s: {before} -> {run.logged_step()} logged, {run.latest_step()} saved; left: {left}"


@pytest.mark.parametrize(("kills", "steps"), [(3, 1000), pytest.param(20, 4000, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_ends_as_an_undisturbed_one(
    tmp_path: Path, kills: int, steps: int
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    killed, whole = RunDirectory(tmp_path / "killed"), RunDirectory(tmp_path / "whole")
    for number in range(kills):
        # One in four while it starts, restores or compiles; the others while it trains, and so mostly while it saves.
        at_once = number % 4 == 1
        seconds = generator.uniform(0, 4 if at_once else 1)
        print(go_on_and_kill(killed, steps, seconds=seconds, at_once=at_once))
    assert killed.latest_step() > 0

    script = runpy.run_path(str(SCRIPT))
    state, undisturbed = (script["train"](run, steps, steps) for run in (killed, whole))
    restored = killed.restore(script["initial"]())
    assert int(state.step) == steps
    leaves = (jax.tree.leaves(one._replace(key=jax.random.key_data(one.key))) for one in (state, restored, undisturbed))
    for trained, saved, expected in zip(*leaves, strict=True):
        np.testing.assert_array_equal(trained, expected)
        np.testing.assert_array_equal(saved, expected)
    assert killed.metrics_file.read_text() == whole.metrics_file.read_text()
    assert not list(killed.checkpoints.glob("*.*"))
