"""What several processes must agree on before they train. Threads stand for the processes."""

import pytest

from as_processes import in_threads
from rnnscan.train import RunDirectory, processes


def test_a_directory_that_all_processes_see_is_accepted_and_left_as_it_was(tmp_path, monkeypatch):
    assert in_threads(monkeypatch, lambda _: RunDirectory(tmp_path / "run").check_shared(), count=3) == [None] * 3
    assert not list((tmp_path / "run").iterdir())


def test_a_directory_that_one_process_does_not_see_is_an_error_in_all(tmp_path, monkeypatch):
    def work(number):
        RunDirectory(tmp_path / ("other" if number == 1 else "run")).check_shared()

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".shared").write_text("of another run")
    errors = in_threads(monkeypatch, work, count=3)
    for number, error in enumerate(errors):
        assert isinstance(error, OSError)
        assert str(error) == (
            f"{'' if number == 1 else 'in process 1: '}train: the run's directory must be the same for all processes; "
            f"got {tmp_path / 'other'}, where process 0 does not write. Use a directory on a disk that all machines "
            "share."
        )
    assert not list((tmp_path / "run").iterdir())


def test_a_directory_that_process_0_cannot_write_is_an_error_in_all(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    errors = in_threads(monkeypatch, lambda _: RunDirectory(tmp_path / "file" / "run").check_shared())
    assert [type(error) for error in errors] == [NotADirectoryError, OSError]
    assert str(errors[1]) == f"in process 0: {errors[0]}"


def test_processes_with_other_values_or_another_version_get_the_same_error(monkeypatch):
    versions = iter(["1", "2"])
    monkeypatch.setattr(processes, "code_versions", lambda: {"version of jax": next(versions)})

    def work(number):
        processes.check_agreement(steps=5 + number, number_of_rows=4)

    first, second = in_threads(monkeypatch, work)
    assert type(first) is type(second) is ValueError
    assert str(first) == str(second)
    assert "got steps 5 in process 0 and 6 in process 1; version of jax" in str(first)
    assert "number of rows" not in str(first)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_process_is_raised_in_all(failing, monkeypatch):
    def work(number):
        return processes.in_all(lambda: [1, 2][number] // (number != failing) if number == failing else number)

    errors = in_threads(monkeypatch, work)
    assert isinstance(errors[failing], ZeroDivisionError)
    assert isinstance(errors[1 - failing], RuntimeError)
    assert str(errors[1 - failing]).startswith(f"in process {failing}: ")


def test_all_processes_get_the_values_of_all(monkeypatch):
    assert (
        in_threads(monkeypatch, lambda number: processes.exchange("é" * 10**number), count=3)
        == [["é", "é" * 10, "é" * 100]] * 3
    )
    assert in_threads(monkeypatch, lambda number: processes.in_first(lambda: [number])) == [[0], [0]]
