"""The programs that random cells become, by hash.

A change that shall change no program is held against them: `python -m fuzz --programs file` before it and after it.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import jax

from fuzz.choices import choices_of
from fuzz.compare import Comparison
from fuzz.random_cells import Case
from rnnscan.engine.costs.heuristics import BACKENDS, using


def programs(seed: int) -> Iterator[tuple[str, str]]:
    """The hashes of a cell's training step, with the choices of each platform: what jax hands to XLA."""
    with jax.enable_x64(True):
        comparison = Comparison(Case.of(seed))
        for platform in BACKENDS:
            for whose, choices in choices_of(platform):
                with using(choices):
                    compute, *arguments = comparison.with_gradients(comparison.by_engine())
                    text = jax.jit(compute).lower(*arguments).as_text()
                yield f"seed {seed}, {whose}", hashlib.sha256(text.encode()).hexdigest()


def changed(found: dict[str, str], file: Path) -> list[str]:
    """The programs that are not those of a file. If there is none, it is written."""
    if not file.exists():
        file.write_text(json.dumps(found, indent=0))
        return []
    before = json.loads(file.read_text())
    return [name for name, program in found.items() if before.get(name) != program]
