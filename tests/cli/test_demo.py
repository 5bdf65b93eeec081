"""`make demo` says what it shows."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_demo_says_in_one_line_that_it_shows_memory() -> None:
    root = Path(__file__).parents[2]
    process = subprocess.run(["make", "-n", "demo"], cwd=root, capture_output=True, text=True, check=True)
    (line,) = (line for line in process.stdout.splitlines() if "This demo shows" in line)
    assert "memory" in line
    assert "no record in language modeling" in line
    assert len(line.removeprefix("echo ").strip('"')) <= 80
