"""Parts of a text, which several processes read, and the fingerprint that they make together."""

import hashlib

import numpy as np
import pytest

from as_processes import in_threads
from rnnscan.train import make_mesh, read_text, text
from rnnscan.train.text import stream_bytes
from rnnscan.train.text_parts import fingerprint, own_ranges, ranges_of


BATCH = 6


def write(folder, count):
    """Files of several thousand bytes."""
    random = np.random.default_rng(0)
    for number in range(count):
        content = random.integers(256, size=3000 + 100 * number, dtype=np.uint8)
        (folder / f"{number:02}.txt").write_bytes(content.tobytes())
    return sorted(folder.glob("*.txt"))


def part(files, rows):
    return read_text(files, lambda size: ranges_of(rows, BATCH, size))


@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_process_reads_the_bytes_of_its_streams_and_no_others(count, tmp_path, monkeypatch):
    files, rows = write(tmp_path, count), [2, 3]
    whole, read, read_into = read_text(files), [], text._read_into
    monkeypatch.setattr(text, "_read_into", lambda here, *place: read.append(here.size) or read_into(here, *place))
    own = part(files, set(rows))

    wanted, block = whole.train.size / BATCH * len(rows), whole.train.size / 1024 + 1
    assert sum(read) - whole.held_out.size <= wanted + 2 * block + 1
    assert own.train.size == whole.train.size
    assert np.count_nonzero(own.train) <= sum(read)
    np.testing.assert_array_equal(stream_bytes(own.train, BATCH)[:, rows], stream_bytes(whole.train, BATCH)[:, rows])
    np.testing.assert_array_equal(own.held_out, whole.held_out)


@pytest.mark.parametrize("parts", [[{0, 1, 2}, {3, 4, 5}], [{4, 5}, {0, 1}, {2, 3}], [{0, 2, 4}, {1, 3, 5}]])
def test_the_fingerprint_of_parts_is_that_of_the_whole_and_changes_with_a_byte(parts, tmp_path, monkeypatch):
    files = write(tmp_path, 3)
    whole = fingerprint(read_text(files))
    texts = [part(files, rows) for rows in parts]
    with monkeypatch.context() as patch:
        assert in_threads(patch, lambda number: fingerprint(texts[number]), len(parts)) == [whole] * len(parts)
    texts[-1].train[texts[-1].read[0][1] - 20] ^= 1
    with monkeypatch.context() as patch:
        changed = in_threads(patch, lambda number: fingerprint(texts[number]), len(parts))
    assert len(set(changed)) == 1
    assert changed[0] != whole


def test_processes_that_read_other_bytes_in_the_same_place_get_an_error(tmp_path, monkeypatch):
    texts = [part(write(tmp_path, 3), {0, 1, 2}) for _ in range(2)]
    texts[1].train[5] ^= 1
    errors = in_threads(monkeypatch, lambda number: fingerprint(texts[number]))
    assert [str(error) for error in errors] == [
        "train: all processes must read the same text; got other bytes in process 1 than in one before it. Copy the "
        "files again, or read them from a disk that all machines share."
    ] * 2


def test_one_process_has_all_streams(tmp_path):
    assert own_ranges(BATCH, make_mesh({"data": 2}))(5000) == [(0, 5000)]
    content = read_text(write(tmp_path, 1))
    assert fingerprint(content) != content.sha256
    assert len(fingerprint(content)) == len(hashlib.sha256().hexdigest())


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path, monkeypatch):
    (file,) = write(tmp_path, 1)
    size = text._size(file)
    monkeypatch.setattr(text, "_size", lambda path: size + 1)
    with pytest.raises(ValueError, match=r"must not change while it is read; got .*00\.txt, which is shorter now"):
        read_text([file])
