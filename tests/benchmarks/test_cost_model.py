"""The measurement of the cost model's constants: it covers every constant. Seconds are not tested."""

from dataclasses import fields

import jax
import numpy as np
import pytest

from benchmarks.beyond.use import Draw
from benchmarks.beyond.uses import USES
from benchmarks.cost_model import accuracy
from benchmarks.cost_model.accelerator import accelerator_probes
from benchmarks.cost_model.accuracy import accuracy_rows, known_uses, measure_use, summary
from benchmarks.cost_model.app import HEADINGS, measured_rows
from benchmarks.cost_model.cpu import cpu_probes
from benchmarks.cost_model.probe import Probe, Sizes
from rnnscan.engine.costs.machine import CPU, GPU, TPU, Machine


TINY = Sizes(steps=4, elements=64, width=32, rows=8, rounds=1)
CONSTANTS = [field.name for field in fields(Machine) if field.name != "name"]


def test_each_constant_of_a_cpu_has_a_probe():
    assert {probe.field for probe in cpu_probes(TINY)} == {*CONSTANTS}


@pytest.mark.parametrize("probes", [cpu_probes, accelerator_probes])
def test_programs_run_and_the_weights_of_each_probe_cancel_its_start(probes):
    for probe in probes(TINY):
        assert probe.units > 0
        assert sum(weight for weight, _ in probe.programs) == pytest.approx(0), probe.title
        for _, program in probe.programs:
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(program())), probe.title


def test_a_row_has_a_constant_beside_its_measurement():
    probes = [Probe("ns_per_exp", "nothing", [(1, lambda: 0.0), (1, lambda: 1.0)], 2.0)] * 2
    ((name, constant, measured, ratio, title),) = measured_rows(probes, 2, CPU)
    assert (name, constant, title) == ("ns_per_exp", "0.5", "nothing, nothing")
    assert float(measured.split()[0]) / 0.5 == pytest.approx(float(ratio), rel=0.01)
    assert "to" in measured
    assert len(HEADINGS) == 5


def test_an_accelerator_has_three_rows():
    assert len(measured_rows(accelerator_probes(TINY), 1, GPU)) == 3


@pytest.mark.parametrize("machine", [CPU, GPU, TPU], ids=lambda machine: machine.name)
def test_every_constant_is_a_time(machine):
    assert all(getattr(machine, name) > 0 for name in CONSTANTS)


def test_estimates_of_uses_lie_beside_measured_times():
    use = USES["neural-sde"]
    times = measure_use(use.make(Draw(), **use.tiny), 0.0)
    (row,) = accuracy_rows({"neural-sde": times})
    assert len(row) == len(accuracy.HEADINGS)
    assert all(row)
    assert [line.split(":")[0] for line in summary([times, times])] == ["forward", "training"]


def test_an_unknown_use_is_refused():
    assert known_uses("ctc,hmm") == ["ctc", "hmm"]
    with pytest.raises(SystemExit, match="got abacus"):
        known_uses("ctc,abacus")
