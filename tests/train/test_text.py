from pathlib import Path

import numpy as np
import pytest

from rnnscan.train import Text, read_text
from rnnscan.train.text import check_enough, contiguous_streams, standard_library


def write_files(folder: Path, count: int) -> list[Path]:
    """Files whose bytes are all the file's own number."""
    paths = [folder / f"{number:02}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 7)
    return paths


@pytest.mark.parametrize(("count", "held_out"), [(10, {9}), (19, {9}), (25, {9, 19}), (30, {9, 19, 29})])
def test_every_tenth_file_is_held_out(tmp_path: Path, count: int, held_out: set[int]) -> None:
    text = read_text(write_files(tmp_path, count))

    assert set(text.held_out.tolist()) == held_out
    assert set(text.train.tolist()) == set(range(count)) - held_out
    assert (text.train_files, text.held_out_files) == (count - len(held_out), len(held_out))
    assert text.train.size + text.held_out.size == 7 * count
    assert text.description == ("1 file held out" if len(held_out) == 1 else f"{len(held_out)} files held out")


@pytest.mark.parametrize(
    ("count", "description"),
    [
        (1, "the last tenth of the file held out"),
        (2, "the last tenth of each of 2 files held out"),
        (9, "the last tenth of each of 9 files held out"),
    ],
)
def test_of_fewer_than_ten_files_the_last_tenth_of_each_is_held_out(
    tmp_path: Path, count: int, description: str
) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(count)]
    contents = [bytes([number]) * (100 + 10 * number) + b"end" * 5 for number in range(count)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)

    text = read_text(paths)

    borders = [len(content) - len(content) // 10 for content in contents]
    assert text.train.tobytes() == b"".join(c[:border] for c, border in zip(contents, borders, strict=True))
    assert text.held_out.tobytes() == b"".join(c[border:] for c, border in zip(contents, borders, strict=True))
    assert text.description == description


def test_the_split_depends_on_neither_order_nor_repetition(tmp_path: Path) -> None:
    paths = write_files(tmp_path, 12)

    once, shuffled = read_text(paths), read_text([*reversed(paths), paths[9], paths[0]])

    assert once.sha256 == shuffled.sha256
    assert once.held_out.tobytes() == shuffled.held_out.tobytes()


def test_a_file_given_twice_is_a_single_file(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes(bytes(range(100)))

    text = read_text([path, tmp_path / "." / "one.txt"])

    assert not set(text.train.tolist()) & set(text.held_out.tolist())


def test_without_files_the_standard_library_is_read() -> None:
    text = read_text([])
    names = [path.name for path in standard_library()]

    assert "argparse.py" in names
    assert text.train_files + text.held_out_files == len(names)
    assert text.held_out_files == len(names) // 10
    assert text.train.size > 1_000_000
    assert text.held_out.tobytes().startswith(standard_library()[9].read_bytes())


def test_the_fingerprint_changes_with_a_byte_and_with_the_split() -> None:
    content = np.arange(10, dtype=np.uint8)
    text = Text(content[:8], content[8:], 1, 1)

    assert text.sha256 == Text(content[:8].copy(), content[8:].copy(), 1, 1).sha256
    assert text.sha256 != Text(content[:7], content[7:], 1, 1).sha256
    assert text.sha256 != Text(content[:8] + 1, content[8:], 1, 1).sha256


@pytest.mark.parametrize(("size", "rows"), [(100, 1), (100, 3), (101, 5), (100, 99), (2, 1)])
def test_streams_are_contiguous_and_go_on_from_each_other(size: int, rows: int) -> None:
    content = np.arange(size, dtype=np.uint8)

    streams = contiguous_streams(content, rows)

    inputs, targets = streams[:-1], streams[1:]
    assert streams.shape == ((size - 1) // rows + 1, rows)
    used = inputs.size
    assert size - used <= rows
    np.testing.assert_array_equal(inputs.T.ravel(), content[:used])
    np.testing.assert_array_equal(targets.T.ravel(), content[1 : used + 1])


def test_a_text_of_exactly_one_window_is_enough() -> None:
    enough = Text(np.zeros(33, np.uint8), np.zeros(2, np.uint8), 1, 1)
    check_enough(enough, batch=4, window=8)
    assert contiguous_streams(enough.train, 4).shape == (9, 4)


def test_a_text_that_is_too_short_says_how_many_bytes_are_needed() -> None:
    with pytest.raises(ValueError, match=r"4 \* 8 \+ 1 = 33, the held-out part not counted; got 32\. Use more text"):
        check_enough(Text(np.zeros(32, np.uint8), np.zeros(9, np.uint8), 1, 1), batch=4, window=8)
    with pytest.raises(ValueError, match=r"the held-out bytes must be at least 2, .*; got 1\."):
        check_enough(Text(np.zeros(99, np.uint8), np.zeros(1, np.uint8), 1, 1), batch=4, window=8)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"got .*missing\.txt: No such file or directory\. Check the path"):
        read_text([tmp_path / "missing.txt"])
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        read_text([tmp_path])
    with pytest.raises(ValueError, match=r"must hold text; got .*empty\.txt, which is empty\. Leave it out\."):
        read_text([tmp_path / "empty.txt"])


def test_a_python_without_its_library_as_files_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(FileNotFoundError, match=r"got 0 of them in .*\. Pass a FILE\."):
        read_text([])
