"""The path of a composed cell or net while a tool traces it, such as `("net_0", "layer_1")`.

Its parts are the keys of the parameters: a cell or net that runs others enters a part for each.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


# Part of jit's cache key: a function that two layers share is traced again for each, so that each has its own path.
# None outside of a tool, where parts must cost no such traces.
_path = jax.make_user_context(None)


@contextmanager
def part(name: str) -> Iterator[None]:
    """A context in which a part of a cell or net runs: a `jax.named_scope`, which tools see as a path too."""
    with jax.named_scope(name), parts((name,)):
        yield


@contextmanager
def parts(names: tuple[str, ...]) -> Iterator[None]:
    """A context in which a part of a part runs that has named scopes of its own, as modules of Flax have."""
    around: tuple[str, ...] | None = _path.value
    if around is None:
        yield
    else:
        with _path((*around, *names)):
            yield


@contextmanager
def paths_from(path: tuple[str, ...]) -> Iterator[None]:
    """A context in which parts are recorded, below a path."""
    with _path(path):
        yield


def current_path() -> tuple[str, ...]:
    """The path of the part that runs; empty where none is recorded."""
    path: tuple[str, ...] | None = _path.value
    return path or ()
