"""plan(): budgets that nothing fits, what it shows meanwhile, and how its result prints."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from planned import RANDOM_CELLS, SMALL, arguments, shapes
from rnnscan import cells
from rnnscan._util.byte_sizes import readable_apart
from rnnscan.checkpointing import NestedScan
from rnnscan.insight import temporary_bytes
from rnnscan.insight.plan import PlannedMemory
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import choices_of
from rnnscan.planning.lower_bound import recurrent_output_bytes
from rnnscan.planning.training_step import TrainingStep
from tiers import variants


def test_a_budget_below_the_outputs_is_refused_without_compiling(monkeypatch):
    """An LSTM of 10,000 steps: 0.4 s of processor time, where the search took 18 s."""
    refuse = lambda *arguments: pytest.fail("predicted or compiled")  # noqa: E731
    monkeypatch.setattr(TrainingStep, "_temporary_bytes", refuse)
    monkeypatch.setattr(TrainingStep, "_predicted_bytes", refuse)
    cell = cells.LSTM(64)
    given = arguments(cell, length=10_000, batch=8, size=64)
    with pytest.raises(ValueError, match=r"nothing fits 16 MiB, because the outputs alone take 19\.5 MiB\. Raise"):
        rs.plan(cell, *given, budget="16MiB")
    net = rs.chain(rs.layer(cells.GRU(8)), rs.layer(cell))
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), 64))
    with pytest.raises(ValueError, match=r"nothing fits 19 MiB, because the outputs alone take 19\.5 MiB\. Raise"):
        rs.plan(net, params, given[2], budget="19MiB")


def test_a_budget_far_below_the_least_takes_one_compilation_and_no_schedule(monkeypatch):
    compiled, predicted = [], []
    measure, predict = TrainingStep._temporary_bytes, TrainingStep._predicted_bytes
    monkeypatch.setattr(
        TrainingStep, "_temporary_bytes", lambda step, memory: compiled.append(memory) or measure(step, memory)
    )
    monkeypatch.setattr(
        TrainingStep, "_predicted_bytes", lambda step, memory: predicted.append(memory) or predict(step, memory)
    )
    given = arguments(SMALL, length=64)
    with pytest.raises(ValueError, match=r"nothing fits 8\.79 KiB; the least found is"):
        rs.plan(SMALL, *given, budget=9_000)
    assert len(compiled) == 1
    assert not any(isinstance(memory.segment, NestedScan) for memory in predicted)


def test_a_budget_below_twice_the_outputs_takes_one_compilation(monkeypatch):
    """No choice measured needs less. Predictions are near, so the search would compile many."""
    compiled, measure = [], TrainingStep._temporary_bytes
    monkeypatch.setattr(
        TrainingStep, "_temporary_bytes", lambda step, memory: compiled.append(memory) or measure(step, memory)
    )
    given = arguments(SMALL, length=256)
    outputs = 256 * 4 * 8 * 4
    with pytest.raises(ValueError, match=r"the least found is .* 1 of \d+ choices were compiled"):
        rs.plan(SMALL, *given, budget=2 * outputs - 1)
    assert len(compiled) == 1


def test_predictions_leave_out_outputs_that_a_loss_on_the_last_carry_does_not_read():
    """XLA drops them. They made the predictions of an LSTM of 10,000 steps 14 times too large."""
    call = Arguments(rs.scan, SMALL, *arguments(SMALL, length=512), {})
    step = TrainingStep(call, last_only=True)
    for memory in (rs.Memory("all", segment=16), rs.Memory("all", segment=(64, 8))):
        assert 0.5 < step.predicted_bytes(memory) / step.temporary_bytes(memory) < 1.3
    smallest = rs.plan(SMALL, *call.with_arrays(call.shapes)[:3], budget="64KiB", last_only=True)
    assert smallest.temporary_bytes <= 2**16


@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory("all", segment=(16, 4))], ids=str)
def test_unoptimized_code_needs_the_same_memory(memory):
    step = TrainingStep(Arguments(rs.scan, SMALL, *arguments(SMALL, length=64), {}), last_only=False)
    gradient, *shapes = step._program(memory)
    assert step.temporary_bytes(memory) == temporary_bytes(jax.jit(gradient).lower(*shapes).compile())


def bottleneck(params, carry, x):
    carry = jnp.tanh(carry @ params["recurrent"] + (x @ params["kernel"]).sum(-1, keepdims=True))
    return carry, carry


def from_a_table(params, carry, x):
    carry = jnp.tanh(carry @ params["recurrent"] + params["table"][jnp.abs(x[:, 0]).astype(int)])
    return carry, (carry, carry)


LARGE_RESULTS = {
    "inputs, by a bottleneck": (bottleneck, {"recurrent": shapes(8, 8), "kernel": shapes(64, 1)}),
    "a table": (from_a_table, {"recurrent": shapes(8, 8), "table": shapes(2000, 8)}),
}


@pytest.mark.parametrize("kind", variants({kind: (kind,) for kind in LARGE_RESULTS}, ["a table"]))
def test_every_choice_needs_the_outputs_whatever_the_gradients_could_hold(kind):
    """XLA puts temporaries into the memory of results where it can: here the results are larger than the outputs."""
    cell, params = LARGE_RESULTS[kind]
    call = Arguments(rs.scan, cell, params, shapes(4, 8), shapes(32, 4, 64), {})
    outputs = recurrent_output_bytes(call)
    assert outputs == 32 * 4 * 8 * 4  # An output that is there twice counts once.
    step = TrainingStep(call, last_only=False)
    choices = [rs.Memory(), rs.Memory("all"), rs.Memory("all", segment=8), rs.Memory("all", segment=(16, 4))]
    assert all(step.temporary_bytes(memory) >= 2 * outputs for memory in choices)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_every_choice_of_random_cells_needs_the_outputs_twice(seed):
    jax.clear_caches()
    random = np.random.default_rng(seed)
    cell = RANDOM_CELLS[random.integers(len(RANDOM_CELLS))](int(random.integers(2, 24)))
    length, batch, size = (int(random.integers(1, most)) for most in (100, 9, 40))
    size = getattr(cell, "hidden_size", size) if isinstance(cell, cells.RGLRU) else size
    call = Arguments(rs.scan, cell, *arguments(cell, length=length, batch=batch, size=size), {})
    outputs, step = recurrent_output_bytes(call), TrainingStep(call, last_only=False)
    for choice in choices_of(call)[:: int(random.integers(1, 5))]:
        assert step.temporary_bytes(choice.memory) >= 2 * outputs


@pytest.mark.parametrize("options", [{"parallel": rs.Newton()}, {"length": 1}], ids=str)
def test_outputs_that_no_loop_writes_do_not_count(options):
    given = arguments(cells.IndRNN(8), length=options.pop("length", 16))
    assert recurrent_output_bytes(Arguments(rs.scan, cells.IndRNN(8), *given, options)) == 0


def test_a_progress_line_by_request_only(capsys):
    assert rs.plan(SMALL, *arguments(SMALL), budget="1MiB", progress=True).choice == rs.Memory()
    shown = capsys.readouterr().err
    assert "choices: 0 predicted, 0 compiled, predicting Memory()" in shown
    assert "predicted, 0 compiled, compiling Memory()" in shown
    rs.plan(SMALL, *arguments(SMALL), budget="1MiB")  # The output is no terminal.
    assert not capsys.readouterr().err


def test_without_tqdm_there_is_no_progress_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert rs.plan(SMALL, *arguments(SMALL), budget="1MiB").choice == rs.Memory()
    with pytest.raises(ImportError, match=r"^plan: progress=True needs tqdm, which is not installed\. Install"):
        rs.plan(SMALL, *arguments(SMALL), budget="1MiB", progress=True)


def test_a_plan_prints_its_choice_in_words_its_bytes_and_its_budget():
    planned = PlannedMemory("all", segment=(64, 8), temporary_bytes=3 * 2**20, relative_cost=1.5, budget=2**22)
    words = "Recompute every name. Keep the carry before segments of 64 steps, and of 8 steps in these."
    assert str(planned).startswith(f"{words}\nMemory(recompute='all', segment=(64, 8))\n\n")
    for name, shown in (("temporary memory", "3 MiB"), ("budget", "4 MiB"), ("estimated time", "1.50 times")):
        assert re.search(rf"^{name} +{shown}$", str(planned), re.MULTILINE)
    given = arguments(SMALL)
    report = rs.memory_report(SMALL, *given, memory=planned, compile=False)
    assert report.summary[0].endswith(": 16 steps of 4 examples")


def test_two_sizes_have_the_digits_that_tell_them_apart():
    assert readable_apart(2**23, 2**23 + 3000) == ("8 MiB", "8.003 MiB")
    assert readable_apart(8_388_000, 8_391_000) == ("7.999 MiB", "8.002 MiB")
