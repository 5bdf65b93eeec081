import json
from dataclasses import replace
from math import log
from pathlib import Path

import jax
import numpy as np
import pytest
from tqdm import tqdm

import rnnscan as rs
from rnnscan.insight import kept_bytes
from rnnscan.train import (
    LanguageModel,
    RunDirectory,
    Text,
    TrainConfig,
    begin_language_model,
    bits_per_byte,
    train_language_model,
)
from rnnscan.train import window_loss as build_window_loss
from rnnscan.train.language_training import _describe
from rnnscan.train.loop import PROGRESS, _speed
from rnnscan.train.metrics import Metrics
from rnnscan.train.text import contiguous_streams
from rnnscan.train.text_run import begin_run
from tiers import variants


SMALL = TrainConfig(hidden=16, embedding=8, batch=4, window=16, steps=12, checkpoint_every=5)


def losses(run: RunDirectory) -> list[float]:
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def begin(path: Path, config: TrainConfig, text: Text) -> RunDirectory:
    run = RunDirectory(path)
    begin_run(run, config, files=[], sha256=text.sha256)
    return run


def test_training_reads_one_window_after_the_other_with_the_state_carried_over(tmp_path: Path, text: Text) -> None:
    # The parameters stay what they were, so each loss is that of the initial model on its window.
    config = replace(SMALL, learning_rate=1e-12, steps=36)
    run = begin(tmp_path, config, text)
    train_language_model(config, text, run=run)

    model, params = config.model, begin_language_model(config).params
    streams = contiguous_streams(text.train, config.batch)
    windows = (len(streams) - 1) // config.window
    assert windows == 15
    expected, window_loss = [], jax.jit(model.loss)
    for step in range(config.steps):
        start = step % windows * config.window
        if start == 0:
            carry = model.initial_carry(config.batch)
        inputs, targets = streams[start : start + 16], streams[start + 1 : start + 17]
        loss, carry = window_loss(params, carry, inputs, targets)
        expected.append(float(loss))
    np.testing.assert_allclose(losses(run), expected, rtol=1e-5)
    assert len(set(expected[:windows])) > 1


def test_training_learns(tmp_path: Path, text: Text) -> None:
    config = replace(SMALL, steps=150, learning_rate=2e-2, checkpoint_every=1000)
    run = begin(tmp_path, config, text)

    state = train_language_model(config, text, run=run)

    bits = [loss / log(2) for loss in losses(run)]
    assert bits[0] > 7
    assert bits[-1] < 0.5
    assert bits_per_byte(config.model, state.params, text.held_out, rows=2, window=16) < 1.5


@pytest.mark.slow  # tests/train/test_language_model.py has the gradients of each choice.
def test_another_memory_choice_trains_to_the_same_losses(tmp_path: Path, text: Text) -> None:
    results = []
    for config in (SMALL, replace(SMALL, recompute=("gates",), segment=(8, 3))):
        run = begin(tmp_path / str(config.segment), config, text)
        train_language_model(config, text, run=run)
        results.append(losses(run))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4)


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_losses(tmp_path: Path, text: Text) -> None:
    whole = begin(tmp_path / "whole", SMALL, text)
    train_language_model(SMALL, text, run=whole)
    parts = begin(tmp_path / "parts", SMALL, text)

    class StopError(Exception):
        pass

    class Stopping(RunDirectory):
        def log(self, step: int, metrics: Metrics) -> None:
            super().log(step, metrics)
            if step == 8:
                raise StopError

    with pytest.raises(StopError):
        train_language_model(SMALL, text, run=Stopping(parts.path))
    assert len(losses(parts)) == 8
    state = parts.restore(begin_language_model(SMALL))
    assert int(state.step) == 5
    assert len(losses(parts)) == 5
    train_language_model(SMALL, text, state=state, run=parts)

    assert losses(parts) == losses(whole)
    assert parts.latest_step() == whole.latest_step() == 12


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (80, " 45%|####     | 315/700, loss 1.54, 2.22 bits/byte, 23.8k tokens/s [00:27<00:33]"),
        (60, " 45%|4| 315/700, loss 1.54, 2.22 bits/byte, 23.8k tokens/s ["),
    ],
)
def test_the_progress_fits_the_terminal(columns: int, line: str) -> None:
    meter = tqdm.format_meter(
        315,
        700,
        elapsed=27,
        ncols=columns,
        ascii=True,
        bar_format=PROGRESS,
        postfix=_describe(
            {"loss": 1.5412, "bits_per_byte": 1.5412 / log(2)}, _speed({"rate": 23_800 / 2048}), tokens=2048
        ),
    )
    assert len(meter) <= columns
    assert meter == line


@pytest.mark.parametrize("window", variants([1, 7, 16, 1000], [7]))
def test_the_evaluation_does_not_depend_on_its_window(window: int, random: np.random.Generator) -> None:
    model = LanguageModel(hidden=8, embedding=4)
    params = model.init(jax.random.key(0))
    held_out = random.integers(0, 256, 101).astype(np.uint8)
    streams = contiguous_streams(held_out, 1)
    loss, _ = model.loss(params, model.initial_carry(1), streams[:-1], streams[1:])

    bits = bits_per_byte(model, params, held_out, rows=1, window=window)

    np.testing.assert_allclose(bits, float(loss) / log(2), rtol=1e-6)


def test_the_evaluation_reads_a_short_text_as_one_stream(random: np.random.Generator) -> None:
    model = LanguageModel(hidden=8, embedding=4)
    params = model.init(jax.random.key(0))
    held_out = random.integers(0, 256, 100).astype(np.uint8)

    one_row, many_rows = (bits_per_byte(model, params, held_out, rows=rows, window=16) for rows in (1, 32))

    assert one_row == many_rows


def test_a_window_keeps_less_the_less_is_asked_for() -> None:
    config = TrainConfig(hidden=64, embedding=16, batch=8, window=64)
    params = jax.eval_shape(config.model.init, jax.random.key(0))
    streams = np.zeros((65, 8), np.int32)
    choices = [None, rs.Memory(), rs.Memory(recompute=("gates",)), rs.Memory(segment="sqrt")]

    kept = [kept_bytes(build_window_loss(config, memory, streams), params) for memory in choices]

    assert kept[:3] == sorted(kept[:3], reverse=True)
    assert kept[1] < 0.65 * kept[0]
    assert kept[2] < 0.35 * kept[0]
    assert kept[3] < 0.25 * kept[0]


def test_a_text_that_is_too_short_is_refused_before_training(text: Text) -> None:
    with pytest.raises(ValueError, match=r"= 4 \* 1000 \+ 1 = 4001, .*; got 1000\."):
        train_language_model(replace(SMALL, window=1000), text)
