"""The path of a composed cell or net while a tool traces it, such as `("net_0", "layer_1")`.

Its parts are the keys of the parameters: a cell or net that runs others enters a part for each.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax

from rnnscan._util.trace_context import trace_context, tracing_with


@contextmanager
def part(name: str) -> Iterator[None]:
    """A context in which a part of a cell or net runs: a `jax.named_scope`, which tools and errors see as a path."""
    try:
        with jax.named_scope(name), parts((name,)):
            yield
    except Exception as error:
        _add_part(error, name)
        raise


@contextmanager
def parts(names: tuple[str, ...]) -> Iterator[None]:
    """A context in which a part of a part runs that has named scopes of its own, as modules of Flax have."""
    around = trace_context().path
    if around is None:  # Outside of a tool parts must not cost a trace of a function that two of them share.
        yield
    else:
        with tracing_with(path=(*around, *names)):
            yield


def paths_from(path: tuple[str, ...]) -> AbstractContextManager[None]:
    """A context in which parts are recorded, below a path."""
    return tracing_with(path=path)


def _add_part(error: Exception, name: str) -> None:
    """Let a note of an error tell its path. Parts add themselves, the innermost first."""
    begins = "rnnscan: the error is in "
    notes = getattr(error, "__notes__", [])
    within = next((number for number, note in enumerate(notes) if note.startswith(begins)), None)
    if within is None:
        error.add_note(f"{begins}{name}, and the arguments that it names, such as `carry`, are those of this part.")
    else:
        notes[within] = f"{begins}{name}.{notes[within].removeprefix(begins)}"


def current_path() -> tuple[str, ...]:
    """The path of the part that runs; empty where none is recorded."""
    return trace_context().path or ()
