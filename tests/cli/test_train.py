import json
import os
import re
import zlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import Result

from rnnscan.train import LanguageModel, RunDirectory, TrainConfig, begin_language_model
from rnnscan.train.metrics import Metrics
from rnnscan.train.text import contiguous_streams


Command = Callable[..., Result]

# 10 windows in the text, so that a run of 12 steps also begins the text anew. All tests train with the same options
# where they can, because a step is compiled once for them; those with broken losses share a seed of their own.
MODEL = ["--hidden", "8", "--embedding", "4", "--batch", "4", "--window", "32", "--recompute", "gates"]
SMALL = [*MODEL, "--steps", "12", "--checkpoint-every", "5", "--sample", "40"]


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def refused(result: Result) -> str:
    """The one paragraph that a command was refused with."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_run_shows_its_memory_its_held_out_bits_and_a_sample(
    rnnscan: Command, text_file: Path, tmp_path: Path
) -> None:
    result = rnnscan("train", text_file, *SMALL, "--out", tmp_path / "run")

    assert result.exit_code == 0, result.output
    kept, unit, plain, plain_unit = re.search(
        r"(\S+) (\S+) kept for the backward pass \(--recompute gates\); plain autodiff keeps (\S+) (\S+)", result.stdout
    ).groups()
    assert unit == plain_unit == "KiB"
    assert 0 < float(kept) < float(plain)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.stdout.splitlines() if "│" in line]
    held_out = text_file.read_bytes()[-152:]
    bits_per_byte = {by: float(bits) for by, bits in rows}
    assert list(bits_per_byte) == ["lstm after 12 steps", "zlib, level 9", "lzma"]
    assert 0 < bits_per_byte["lstm after 12 steps"] < 9
    passes = 12 * 4 * 32 / (text_file.stat().st_size - len(held_out))
    assert f"The model trained on 1.50 KiB of other text ({passes:.2f} passes over it)" in result.stdout
    assert "The compressors adapt to the held-out bytes" in result.stdout
    assert bits_per_byte["zlib, level 9"] == pytest.approx(8 * len(zlib.compress(held_out, 9)) / 152, abs=1e-3)
    assert "152 held-out bytes" in result.stdout
    assert "a sample of the model" in result.stdout
    assert "1.34 KiB to train on, 152 B to evaluate on: the last tenth of the file held out" in result.stdout
    assert re.search(r"100%\|.*\| 12/12, loss \S+, \S+ bits/byte, \S+ tokens/s \[", result.stderr)
    assert len(losses(tmp_path / "run")) == 12


@pytest.mark.slow
def test_a_run_and_its_sample_follow_from_the_seed(rnnscan: Command, text_file: Path, tmp_path: Path) -> None:
    options = ["train", text_file, *SMALL, "--out", tmp_path / "run"]

    first, same, other = (rnnscan(*options, "--overwrite", "--seed", seed).stdout for seed in ("0", "0", "1"))

    assert first == same
    samples = [output[output.index("a sample of the model") :] for output in (first, other)]
    assert samples[0] != samples[1]


def test_a_run_that_stopped_before_its_first_checkpoint_is_resumed_from_its_beginning(
    rnnscan: Command, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, stopped, whole = RunDirectory.log, tmp_path / "stopped", tmp_path / "whole"

    def log_and_interrupt(run: RunDirectory, step: int, metrics: Metrics) -> None:
        log(run, step, metrics)
        if step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(RunDirectory, "log", log_and_interrupt)
        interrupted = rnnscan("train", text_file, *SMALL, "--out", stopped)
    assert interrupted.exit_code == 130
    assert interrupted.stderr.endswith(
        f"Stopped at step 3. Resume with: rnnscan train --resume --out {stopped} (from step 0).\n"
    )
    assert losses(stopped)

    assert rnnscan("train", "--resume", "--out", stopped).exit_code == 0
    assert rnnscan("train", text_file, *SMALL, "--out", whole).exit_code == 0
    assert losses(stopped) == losses(whole)


def with_losses_that_are_not_finite(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Make the losses of these steps, from 1, infinite, by streams of text in which the steps are marked."""
    loss = LanguageModel.loss

    def broken(model: LanguageModel, params: Any, carry: Any, inputs: Any, targets: Any, **options: Any) -> Any:
        value, carry = loss(model, params, carry, jnp.abs(inputs), targets, **options)
        return value * jnp.where(inputs[0, 0] < 0, jnp.inf, 1.0), carry

    def marked(text: np.ndarray, rows: int) -> np.ndarray:
        streams = contiguous_streams(text, rows)
        for step in steps:
            streams[(step - 1) % 10 * 32] *= -1
        return streams

    monkeypatch.setattr(LanguageModel, "loss", broken)
    monkeypatch.setattr("rnnscan.train.language_training.stream_bytes", marked)


def test_losses_that_are_not_finite_stop_the_run_where_they_persist(
    rnnscan: Command, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_losses_that_are_not_finite(monkeypatch, set(range(3, 11)))

    result = rnnscan("train", text_file, *SMALL, "--seed", "7", "--out", tmp_path / "run")

    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert result.stderr.splitlines()[-1].startswith("Error: fit: no more than 5 steps in a row may be skipped ")
    assert "got 6, the last of them step 8 with the loss inf" in result.stderr
    assert "Lower the learning rate" in result.stderr
    values = losses(tmp_path / "run")
    assert None not in values[:2]
    assert values[2:] == [None] * 6


def test_check_finite_stops_at_the_first_of_them_and_says_where_it_began(
    rnnscan: Command, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_losses_that_are_not_finite(monkeypatch, {4})

    result = rnnscan("train", text_file, *SMALL, "--seed", "7", "--check-finite", "--out", tmp_path / "run")

    assert result.exit_code == 1
    assert "Traceback" not in result.output
    message = " ".join(result.stderr.split())
    assert "Error: fit: update 3 of the training is not finite. `result['loss']`, forward: inf = select_n(" in message
    assert "broken)" in message
    report = tmp_path / "run" / "failure" / "report.txt"
    assert "load_failure(state, batch)" in report.read_text()
    assert [value is None for value in losses(tmp_path / "run")] == [False, False, False, True]
    config = TrainConfig(hidden=8, embedding=4, batch=4, window=32, recompute=("gates",), steps=12, seed=7)
    batch = np.zeros((33, 4), np.int32)
    state, batch = RunDirectory(tmp_path / "run").load_failure(begin_language_model(config), batch)
    assert int(state.step) == 3
    assert batch[0, 0] < 0


def test_a_single_loss_that_is_not_finite_is_skipped_and_counted(
    rnnscan: Command, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_losses_that_are_not_finite(monkeypatch, {4})

    result = rnnscan("train", text_file, *SMALL, "--seed", "7", "--out", tmp_path / "run")

    assert result.exit_code == 0, result.output
    values = losses(tmp_path / "run")
    assert [step for step, value in enumerate(values, 1) if value is None] == [4]
    assert ", 1 skipped [" in result.stderr


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    rnnscan: Command, run: Path, text_file: Path
) -> None:
    whole = losses(run)
    largest = max((run / "checkpoints" / "12").rglob("d/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])

    result = rnnscan("train", "--resume", "--out", run, "--sample", "0")

    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(f"Warning: the checkpoint {run / 'checkpoints' / '12'} is damaged: its file state/")
    assert f"Resuming from the one before it, {run / 'checkpoints' / '10'}." in result.stderr.splitlines()[0]
    assert losses(run) == whole


def test_metrics_for_tensorboard_are_written_where_asked_for(rnnscan: Command, text_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    result = rnnscan("train", text_file, *SMALL, "--out", tmp_path / "run", "--tensorboard")
    assert result.exit_code == 0, result.output
    assert [path.name.split(".")[0] for path in (tmp_path / "run" / "tensorboard").iterdir()] == ["events"]


def test_a_finished_run_can_be_resumed_to_see_its_results_again(
    rnnscan: Command, text_file: Path, tmp_path: Path
) -> None:
    first = rnnscan("train", text_file, *SMALL, "--out", tmp_path / "run")
    again = rnnscan("train", "--resume", "--out", tmp_path / "run", "--sample", "40")

    assert again.exit_code == 0, again.output
    assert again.stdout.replace("Already finished at step 12; evaluating.\n", "", 1) == first.stdout != again.stdout
    assert again.stderr == ""


@pytest.fixture
def run(rnnscan: Command, text_file: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    result = rnnscan("train", text_file, *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    return out


def test_resuming_refuses_what_contradicts_the_run(rnnscan: Command, run: Path, text_file: Path) -> None:
    def resume(*options: str | Path) -> Result:
        return rnnscan("train", "--resume", "--out", run, "--sample", "0", *options)

    assert resume("--hidden", "8", "--recompute", "gates").exit_code == 0
    assert "--hidden must not change; got 16 on the command line and 8 in" in refused(resume("--hidden", "16"))
    assert "--hidden must not change; got 256" in refused(resume("--hidden", "256"))
    assert "got all on the command line and ('gates',) in" in refused(resume("--recompute", "all"))
    assert "--learning-rate must not change" in refused(resume("--learning-rate", "0.5"))
    assert "The learning rate's decay depends on --steps. Leave it out" in refused(resume("--steps", "20"))
    other = text_file.with_name("other.txt")
    other.write_text("another text")
    assert "FILE must not change; got " in refused(resume(other))
    text_file.write_bytes(b"another content " * 80)
    assert "the text must not change" in refused(resume())


def test_a_run_is_not_written_over_unless_asked_for(rnnscan: Command, run: Path, text_file: Path) -> None:
    options = ["train", text_file, *SMALL, "--out", run]
    (run / "metrics.jsonl").write_text("of the old run")

    assert "must be a new or an empty directory" in refused(rnnscan(*options))
    assert (run / "metrics.jsonl").read_text() == "of the old run"
    assert rnnscan(*options, "--overwrite").exit_code == 0
    assert len(losses(run)) == 12


def test_resuming_without_a_run_is_refused(rnnscan: Command, tmp_path: Path) -> None:
    assert "--out must hold a run; got no" in refused(rnnscan("train", "--resume", "--out", tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_trained_on_is_refused_before_anything_is_written(
    rnnscan: Command, text_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    empty = tmp_path / "empty.txt"
    empty.touch()

    def train(*options: str | Path) -> str:
        message = refused(rnnscan("train", *options, "--out", out))
        assert not out.exists()
        return message

    assert "missing.txt: No such file or directory" in train(tmp_path / "missing.txt")
    assert "Is a directory" in train(tmp_path)
    assert "empty.txt, which is empty" in train(empty)
    assert "batch * window + 1 = 32 * 64 + 1 = 2049, the held-out part not counted; got 1368." in train(text_file)
    assert "got 'gate', and the cell names 'gates'. Did you mean 'gates'?" in train(
        text_file, "--batch", "2", "--recompute", "gate"
    )
    assert "the cell names 'preactivation'" in train(text_file, *SMALL, "--cell", "rnn")
    assert "--recompute must be names, or `all` alone; got gates, all." in train(
        text_file, *SMALL, "--recompute", "all"
    )
    assert "--segment must be a number of steps" in train(text_file, *SMALL, "--segment", "many")
    assert "from the longest to the shortest with commas between, or sqrt; got '4,8'" in train(
        text_file, *SMALL, "--segment", "4,8"
    )
    assert "--segment must be a number of steps of at least 1" in train(text_file, *SMALL, "--segment", "0")
    assert "--learning-rate must be above 0; got -1.0." in train(text_file, *SMALL, "--learning-rate", "-1")
    assert "--temperature must be above 0; got 0.0." in train(text_file, *SMALL, "--temperature", "0")
    assert "got both --resume and --overwrite" in train(text_file, *SMALL, "--resume", "--overwrite")


def test_a_directory_that_cannot_be_written_is_refused(rnnscan: Command, text_file: Path) -> None:
    message = refused(rnnscan("train", text_file, *SMALL, "--out", text_file / "run"))
    assert f"--out must be a writable directory; got {text_file / 'run'}: Not a directory." in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_refused(rnnscan: Command, text_file: Path, tmp_path: Path) -> None:
    text_file.chmod(0)
    assert "Permission denied" in refused(rnnscan("train", text_file, "--out", tmp_path / "run"))


def test_the_version_is_shown(rnnscan: Command) -> None:
    result = rnnscan("--version")
    assert result.exit_code == 0
    assert result.stdout == f"rnnscan {version('rnnscan')}\n"


@pytest.mark.parametrize("command", [[], ["train"], ["run"], ["tradeoff"], ["plan"]], ids=" ".join)
def test_help_shows_no_type_for_a_flag(rnnscan: Command, command: list[str]) -> None:
    shown = rnnscan(*command, "--help").stdout
    assert "bool" not in shown.lower()
    assert re.search(r"--help  +Show this message and exit\.", shown)
    flags = {"train": "--resume", "run": "--stream", "tradeoff": "--last-only", "plan": "--last-only"}
    for flag in (flags[name] for name in command):
        assert re.search(rf"{flag}  +[A-Z]", shown), flag


def test_an_option_of_a_wrong_kind_is_refused(rnnscan: Command) -> None:
    for options in (["--hidden", "0"], ["--cell", "tree"], ["--steps", "many"]):
        result = rnnscan("train", *options)
        assert result.exit_code == 2
        assert options[0] in result.stderr


@pytest.mark.slow  # test_placement.py trains on two devices too.
def test_a_run_on_two_devices_is_that_of_one_and_is_resumed_on_another_mesh(
    rnnscan: Command, text_file: Path, tmp_path: Path
) -> None:
    for out, mesh in (("one", []), ("two", ["--mesh", "data=2"])):
        result = rnnscan("train", text_file, *SMALL, *mesh, "--out", tmp_path / out)
        assert result.exit_code == 0, result.output
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5)
    resumed = rnnscan("train", "--resume", "--out", tmp_path / "two", "--mesh", "model=2")
    assert resumed.exit_code == 0, resumed.output
    assert "Already finished at step 12; evaluating." in resumed.stdout


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ("data:2", "--mesh must be such as data=4,model=2, each axis once; got 'data:2'"),
        ("data=1,data=2", "--mesh must be such as data=4,model=2, each axis once; got 'data=1,data=2'"),
        ("rows=2", "an axis must be one of 'data', 'model'; got 'rows'"),
        ("data=64", "at most"),
        ("model=2", "must divide the hidden units; got 7"),
    ],
)
def test_a_wrong_mesh_is_an_error_before_anything_is_written(
    mesh: str, expected: str, rnnscan: Command, text_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = rnnscan("train", text_file, *SMALL, "--hidden", "7", "--mesh", mesh, "--out", out)
    assert expected in refused(result)
    assert not out.exists()
