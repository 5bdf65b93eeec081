"""The parts of a text that each of several processes reads, and a fingerprint of the whole that no process reads."""

import hashlib
import json
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rnnscan.train.processes import exchange
from rnnscan.train.text import Ranges, Text


# The training bytes are fingerprinted in at most so many blocks. A process reads whole blocks, so that it can.
BLOCKS = 1024


def own_ranges(batch: int, mesh: Mesh) -> Callable[[int], Ranges]:
    """The bytes that the streams on this process's devices need, as a function of the number of training bytes.

    Args:
        batch: the number of streams.
        mesh: a mesh of `make_mesh`.

    Example:
        >>> from rnnscan.train import make_mesh
        >>> own_ranges(4, make_mesh({"data": 1}))(1000)
        [(0, 1000)]
    """
    indices = NamedSharding(mesh, PartitionSpec("data")).addressable_devices_indices_map((batch,)).values()
    rows = {row for index in indices if index for row in range(*index[0].indices(batch))}
    return lambda size: ranges_of(rows, batch, size)


def ranges_of(rows: set[int], batch: int, size: int) -> Ranges:
    """The ranges of some streams, in whole blocks. The last stream has the end of the text too."""
    length, block = (size - 1) // batch, _block_size(size)
    ranges: list[tuple[int, int]] = []
    for row in sorted(rows):
        start = row * length // block * block
        stop = size if row == batch - 1 else min(size, -(-((row + 1) * length + 1) // block) * block)
        if ranges and start <= ranges[-1][1]:
            start = ranges.pop()[0]
        ranges.append((start, stop))
    return ranges


def fingerprint(text: Text) -> str:
    """A fingerprint of a text and its split. Each process computes that of the blocks that it has read.

    Raises:
        ValueError: in all processes, if two have read other bytes.

    Example:
        >>> content = np.arange(10, dtype=np.uint8)
        >>> fingerprint(Text(content[:8], content[8:], 1, 1)) == fingerprint(Text(content[:7], content[7:], 1, 1))
        False
    """
    block = _block_size(text.train.size)
    numbers = [
        number
        for start, stop in ([(0, text.train.size)] if text.read is None else text.read)
        for number in range(start // block, -(-stop // block))
    ]
    block_digests = {str(number): _digest(text.train[number * block : (number + 1) * block]) for number in numbers}
    merged: dict[str, str] = {}
    for process, digests in enumerate(exchange(block_digests | {"held out": _digest(text.held_out)})):
        differing = [name for name, digest in digests.items() if merged.setdefault(name, digest) != digest]
        if differing:
            raise ValueError(
                f"train: all processes must read the same text; got other bytes in process {process} than in one "
                "before it. Copy the files again, or read them from a disk that all machines share."
            )
    return hashlib.sha256(json.dumps([text.train.size, sorted(merged.items())]).encode()).hexdigest()


def _block_size(size: int) -> int:
    return max(1, -(-size // BLOCKS))


def _digest(content: np.ndarray) -> str:
    return hashlib.sha256(content.tobytes()).hexdigest()
