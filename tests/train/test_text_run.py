import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rnnscan.train import RunDirectory, TrainConfig, begin_language_model
from rnnscan.train.text_run import begin_run, check_free, config_file, read_run


CONFIG = TrainConfig(
    cell="gru", hidden=4, layers=2, embedding=3, batch=2, window=5, recompute=("gates",), segment=(4, 2)
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    begin_run(run, CONFIG, files=["/a", "/b"], sha256="123")
    return run


def test_the_options_are_read_as_they_were_written(run: RunDirectory) -> None:
    assert read_run(run) == (CONFIG, ["/a", "/b"], "123")
    assert json.loads(config_file(run).read_text())["hidden"] == 4
    for config in (replace(CONFIG, segment="sqrt"), replace(CONFIG, recompute="all", segment=None)):
        begin_run(run, config, files=[], sha256="")
        assert read_run(run)[0] == config


def test_a_new_run_replaces_the_old_one_and_nothing_else(run: RunDirectory) -> None:
    run.log(1, {"loss": 0.5})
    run.save(begin_language_model(CONFIG))
    (run.path / "notes.txt").write_text("mine")

    begin_run(run, replace(CONFIG, hidden=8), files=[], sha256="")

    assert read_run(run)[0].hidden == 8
    assert run.metrics_file.read_text() == ""
    assert (run.path / "notes.txt").read_text() == "mine"
    assert not run.checkpoints.exists()


def test_a_directory_that_holds_something_is_refused(tmp_path: Path, run: RunDirectory) -> None:
    check_free(RunDirectory(tmp_path / "new"), overwrite=False)
    (tmp_path / "empty").mkdir()
    check_free(RunDirectory(tmp_path / "empty"), overwrite=False)
    check_free(run, overwrite=True)
    with pytest.raises(FileExistsError, match=r"must be a new or an empty directory; got .*run, which holds files\."):
        check_free(run, overwrite=False)
    with pytest.raises(NotADirectoryError, match=r"must be a directory; got .*, which is a file\."):
        check_free(RunDirectory(config_file(run)), overwrite=True)


def test_resuming_where_no_run_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"--out must hold a run; got no .*config\.json\."):
        read_run(RunDirectory(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps(asdict(CONFIG))])
def test_a_config_that_is_not_one_is_refused(run: RunDirectory, content: str) -> None:
    config_file(run).write_text(content)
    with pytest.raises(ValueError, match=r"must hold the options of a run of this version of rnnscan; got "):
        read_run(run)
