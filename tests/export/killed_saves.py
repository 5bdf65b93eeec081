"""Saves that a test kills: `killed_saves.py FOLDER FIRST`. Each is another function, so all files change."""

import itertools
import sys
from pathlib import Path

import jax.numpy as jnp

import rnnscan as rs


def save(folder: Path, number: int) -> None:
    """Save parameters and a program that give `number` together; from different saves they do not."""

    def fn(params: object, x: object) -> object:
        return params["number"] * x, jnp.float32(number) * x

    # Large enough that writing takes time.
    params = {"number": jnp.float32(number), "ballast": jnp.full((1 << 18,), number, jnp.float32)}
    rs.export.save(folder, fn, params, [jnp.ones(2)], ["cpu"], ("N",))


if __name__ == "__main__":
    for number in itertools.count(int(sys.argv[2])):
        save(Path(sys.argv[1]), number)
