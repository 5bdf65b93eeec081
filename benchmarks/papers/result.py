"""A published figure, and ours."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec


@dataclass(frozen=True)
class Figure:
    """A published figure, and ours.

    Attributes:
        task: the task and the model.
        what: what the figure is.
        published: the published figure, in words.
        ours: ours, in words.
        met: whether ours is within the published spread; None: there is nothing to compare with.
        seconds: the time that ours took, compilation included.
        source: the paper, code or formula of the published figure.
    """

    task: str
    what: str
    published: str
    ours: str
    met: bool | None
    seconds: float
    source: str


def likelihood_figure(task: str, ours: Callable[[], float], package: str, reference: Callable[[], float]) -> Figure:
    """A log likelihood beside that of a package: met if the relative difference is at most 1e-9.

    Args:
        task: the task and the model.
        ours: computes our log likelihood.
        package: the package of the reference.
        reference: computes the package's; called only if the package is installed.
    """
    started = time.perf_counter()
    value = ours()
    seconds = time.perf_counter() - started
    if not installed(package):
        return Figure(task, "log likelihood", absent(package), f"{value:.9f}", None, seconds, package)
    expected = reference()
    met = abs(value - expected) <= 1e-9 * abs(expected)
    return Figure(task, "log likelihood", f"{expected:.9f}", f"{value:.9f}", met, seconds, named(package))


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return find_spec(package) is not None


def absent(package: str) -> str:
    """What a row says without the package."""
    return f"{package} is not installed"


def named(package: str) -> str:
    """A package with its version."""
    return f"{package} {version(package)}"
