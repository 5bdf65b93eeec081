"""Scans and nets with the batch spread over devices: results, gradients, and what the devices send to each other."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


MODES = ["explicit", "auto", "shard_map"]
MEMORIES = ["all names", "recompute all", "segments", "plain autodiff"]
# What `make test` runs of each mode; the rest is slow. Each is compiled for one device and for eight.
QUICK = {
    "explicit": {
        "LSTM": MEMORIES,
        "LayerNormLSTM": ["all names"],
        "stack": ["recompute all"],
        "bidirectional": MEMORIES[:1],
        "recurrent_net": MEMORIES[:1],
    },
    "auto": {"LSTM": MEMORIES[:2], "decoder": ["all names"], "lengths": ["all names"]},
    "shard_map": {"LSTM": MEMORIES[:1], "MinGRU": ["recompute all"]},
}
CASES = ["LSTM", "GRU", "LayerNormLSTM", "MinGRU", "stack", "decoder", "lengths", "lengths, hold", "recurrent_net"]
NETS = ["layer", "chain", "bidirectional"]
SLOW = {
    mode: {
        case: [memory for memory in memories if memory not in QUICK[mode].get(case, ())]
        for case, memories in [*((case, MEMORIES) for case in CASES), *((net, MEMORIES[1:2]) for net in NETS)]
    }
    for mode in MODES
}


def variants(asked):
    return [(mode, f"{case}, {memory}") for mode in asked for case, chosen in asked[mode].items() for memory in chosen]


@cache
def run_on_devices(mode, quick):
    asked = (QUICK if quick else SLOW)[mode]
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here.parent)}
    command = [sys.executable, str(here / "on_devices.py"), mode, json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


each = pytest.mark.parametrize(
    ("mode", "variant", "quick"),
    [
        *((mode, variant, True) for mode, variant in variants(QUICK)),
        *(pytest.param(mode, variant, False, marks=pytest.mark.slow) for mode, variant in variants(SLOW)),
    ],
)


@each
def test_results_and_gradients_are_those_of_one_device(mode, variant, quick):
    assert run_on_devices(mode, quick)[variant]["difference"] < 2e-5


@each
def test_nothing_is_gathered(mode, variant, quick):
    """The gradients of parameters are summed where the rows are."""
    kinds = {kind.split()[0] for kind in run_on_devices(mode, quick)[variant]["collectives"]}
    assert kinds == {"all-reduce"}
