import json
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from rnnscan.train import RunDirectory, TrainConfig, initial_state


CONFIG = TrainConfig(
    cell="gru", hidden=4, layers=2, embedding=3, batch=2, window=5, recompute=("gates",), segment=(4, 2)
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.begin(CONFIG, files=["/a", "/b"], sha256="123")
    return run


def test_the_options_are_read_as_they_were_written(run: RunDirectory) -> None:
    assert run.read_config() == (CONFIG, ["/a", "/b"], "123")
    assert json.loads(run.config_file.read_text())["hidden"] == 4
    for config in (replace(CONFIG, segment="sqrt"), replace(CONFIG, recompute="all", segment=None)):
        run.begin(config, files=[], sha256="")
        assert run.read_config()[0] == config


def test_a_state_is_restored_as_it_was_saved(run: RunDirectory) -> None:
    state = initial_state(CONFIG)._replace(step=jnp.array(7))
    state = jax.tree.map(lambda leaf: leaf + jnp.ones_like(leaf) / 3 if leaf.ndim else leaf, state)

    run.save(state)
    restored = run.restore(initial_state(CONFIG))

    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for actual, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


def test_only_the_latest_checkpoint_is_kept(run: RunDirectory) -> None:
    for step in (1, 2, 10):
        run.save(initial_state(CONFIG)._replace(step=jnp.array(step)))
    assert run.latest_step() == 10
    assert [path.name for path in run.checkpoints.iterdir()] == ["10"]


def test_a_checkpoint_that_was_cut_short_is_not_read(run: RunDirectory) -> None:
    run.save(initial_state(CONFIG)._replace(step=jnp.array(3)))
    unfinished = run.checkpoints / "4.orbax-checkpoint-tmp"
    unfinished.mkdir()
    (unfinished / "part").touch()
    assert run.latest_step() == 3


def test_without_a_checkpoint_the_initial_state_is_restored(run: RunDirectory) -> None:
    run.log(1, 0.5)
    assert run.logged_step() == 1
    state = initial_state(CONFIG)

    assert run.restore(state) is state
    assert run.metrics_file.read_text() == ""


def test_a_checkpoint_that_is_damaged_is_refused(run: RunDirectory) -> None:
    run.save(initial_state(CONFIG)._replace(step=jnp.array(3)))
    shutil.rmtree(run.checkpoints / "3" / "default")
    with pytest.raises(ValueError, match=r"the checkpoint must be as it was written; got .*3, which cannot be read"):
        run.restore(initial_state(CONFIG))


def test_ctrl_c_waits_until_a_checkpoint_is_written(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    save = ocp.CheckpointManager.save

    def interrupt_and_save(*arguments: object, **options: object) -> bool:
        signal.raise_signal(signal.SIGINT)
        return save(*arguments, **options)

    monkeypatch.setattr(ocp.CheckpointManager, "save", interrupt_and_save)
    with pytest.raises(KeyboardInterrupt):
        run.save(initial_state(CONFIG)._replace(step=jnp.array(3)))
    assert run.latest_step() == 3
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_metrics_are_cut_back_to_the_checkpoint(run: RunDirectory) -> None:
    for step in range(1, 6):
        run.log(step, step / 10)
        if step == 3:
            run.save(initial_state(CONFIG)._replace(step=jnp.array(3)))
    with run.metrics_file.open("a") as file:
        file.write('{"step": 6, "lo')  # as a kill leaves it

    run.restore(initial_state(CONFIG))

    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    np.testing.assert_allclose(lines[0]["bits_per_byte"], 0.1 / np.log(2))


def test_a_new_run_replaces_the_old_one_and_nothing_else(run: RunDirectory) -> None:
    run.log(1, 0.5)
    run.save(initial_state(CONFIG))
    (run.path / "notes.txt").write_text("mine")

    run.begin(replace(CONFIG, hidden=8), files=[], sha256="")

    assert run.read_config()[0].hidden == 8
    assert run.metrics_file.read_text() == ""
    assert (run.path / "notes.txt").read_text() == "mine"
    assert run.latest_step() == 0


def test_a_directory_that_holds_something_is_refused(tmp_path: Path, run: RunDirectory) -> None:
    RunDirectory(tmp_path / "new").check_free(overwrite=False)
    (tmp_path / "empty").mkdir()
    RunDirectory(tmp_path / "empty").check_free(overwrite=False)
    run.check_free(overwrite=True)
    with pytest.raises(FileExistsError, match=r"must be a new or an empty directory; got .*run, which holds files\."):
        run.check_free(overwrite=False)
    with pytest.raises(NotADirectoryError, match=r"must be a directory; got .*, which is a file\."):
        RunDirectory(run.config_file).check_free(overwrite=True)


def test_resuming_where_no_run_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there must be a run to go on with; got no .*config\.json\."):
        RunDirectory(tmp_path).read_config()


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps(asdict(CONFIG))])
def test_a_config_that_is_not_one_is_refused(run: RunDirectory, content: str) -> None:
    run.config_file.write_text(content)
    with pytest.raises(ValueError, match=r"must hold the options of a run of this version of rnnscan; got "):
        run.read_config()
