import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from rnnscan.train import RunDirectory


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


pytest.importorskip("tensorboardX")


def read_events(folder: Path) -> list[tuple[int, str, float]]:
    """What is in the event files, from TensorBoard's record format: length, its checksum, event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = []
    for file in sorted(folder.iterdir()):
        content, place = file.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            place += length + 16
    return scalars


def test_tensorboard_is_shown_what_the_lines_of_json_hold(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, tensorboard=True)
    with run.logging() as log:
        log(1, {"loss": 0.5, "skipped": 0})
        log(2, {"loss": float("nan"), "skipped": 1})
    assert read_events(run.tensorboard_folder) == [(1, "loss", 0.5), (1, "skipped", 0.0), (2, "skipped", 1.0)]
    assert run.read_metrics() == [
        {"step": 1, "loss": 0.5, "skipped": 0},
        {"step": 2, "loss": None, "skipped": 1},
    ]


def test_a_run_that_goes_on_shows_each_step_once(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, tensorboard=True)
    with run.logging() as log:
        log(1, {"loss": 1.0})
    (events,) = run.tensorboard_folder.iterdir()
    events.rename(events.with_name("events.out.tfevents.1"))  # its name holds the second, which may be the same below
    run.log(2, {"loss": 2.0})  # what a kill has kept from the event files
    with run.logging() as log:
        log(3, {"loss": 3.0})
    assert read_events(run.tensorboard_folder) == [(1, "loss", 1.0), (2, "loss", 2.0), (3, "loss", 3.0)]
    run.clear()
    assert not run.tensorboard_folder.exists()


def test_the_events_are_written_where_the_training_ends_abruptly(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, tensorboard=True)

    def stop_while_logging() -> None:
        with run.logging() as log:
            log(1, {"loss": 0.25})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_while_logging()
    assert read_events(run.tensorboard_folder) == [(1, "loss", 0.25)]


def test_tensorboards_own_reader_reads_them(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = RunDirectory(tmp_path, tensorboard=True)
    with run.logging() as log:
        for step in range(1, 4):
            log(step, {"loss": step / 4})
    reader: Any = event_accumulator.EventAccumulator(str(run.tensorboard_folder)).Reload()
    assert [(scalar.step, scalar.value) for scalar in reader.Scalars("loss")] == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_without_its_extra_tensorboard_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    RunDirectory(tmp_path)
    with pytest.raises(ImportError, match=r"the extra 'tensorboard' must be installed; got no module 'tensorboardX'\."):
        RunDirectory(tmp_path, tensorboard=True)
