"""Every cell of the library equals one device if devices share its units, and so does a cell of a user."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


# A cell that joins input and state, and cuts its gates unevenly; with forward mode and vmap.
QUICK = ["Own"]
SLOW = [
    *("RNN", "LSTM", "GRU", "MGU", "LayerNormLSTM", "LayerNormGRU", "MILSTM", "LayerNormMILSTM", "IndRNN", "MinGRU"),
    *("MinLSTM", "QRNN", "SRU", "LRU", "RGLRU", "S6", "SLSTM", "MLSTM", "GLA", "RetNet", "LinearAttention"),
    *("Mamba2", "DeltaNet", "ParaGRU", "ParaLSTM"),
]


@cache
def found(quick):
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        str(root / "tests" / "support" / "units_of_cells.py"),
        json.dumps(QUICK if quick else SLOW),
    ]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("cell", "quick"),
    [*((cell, True) for cell in QUICK), *(pytest.param(cell, False, marks=pytest.mark.slow) for cell in SLOW)],
)
def test_a_cell_with_sharded_units_equals_one_device(cell, quick):
    assert found(quick)[cell] < 3e-5
