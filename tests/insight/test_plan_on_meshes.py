"""Memory.fit inside shard_map and pmap and on explicit meshes: a plan for what one device holds."""

import json
import os
import subprocess
import sys
from pathlib import Path


def found():
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-W", "ignore", str(root / "tests" / "support" / "plans_on_devices.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_a_budget_is_for_one_device():
    """One test for all modes: two workers would each run the process."""
    report = found()
    assert report["names kept"] > report["budget"]
    for mode in ("shard_map", "pmap", "explicit"):
        assert report[mode]["difference"] < 2e-6, mode
        assert report[mode]["needed"] <= report["budget"], mode
