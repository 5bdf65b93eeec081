"""What rnnscan knows about the versions of jax and jaxlib: those that it excludes, and bugs that give wrong values."""

import re
from dataclasses import dataclass

from rnnscan._callers import calling_line


class JaxVersionWarning(UserWarning):
    """The installed jax or jaxlib is excluded by rnnscan, or has bugs that a later one has not.

    It is issued once a process, by the import of the first part that needs jax; `docs/versions.md` has all known bugs.

    Example:
        >>> import warnings
        >>> import rnnscan as rs
        >>> warnings.filterwarnings("ignore", category=rs.JaxVersionWarning)  # before other names of rs are used
    """


@dataclass(frozen=True)
class _Bug:
    """A bug of XLA for CPUs. jaxlib has it from version `since` on, and no more in version `gone`."""

    what: str
    since: tuple[int, ...]
    gone: tuple[int, ...] | None

    def is_in(self, jaxlib: tuple[int, ...]) -> bool:
        return self.since <= jaxlib and (self.gone is None or jaxlib < self.gone)


# Those of docs/versions.md that give wrong values or end the process, in scans and elsewhere.
_BUGS = (
    _Bug("sums of squares of small products are wrong from row 32,769 on", (0, 10, 2), (0, 11)),
    _Bug("sums and maxima of small products are wrong from row 32,769 on", (0, 10), (0, 11)),
    _Bug("a reduction of seven or eight axes ends the process", (0, 10, 2), (0, 11, 1)),
    _Bug("the maximum of 8,192 values or more passes over NaN", (0, 10, 2), None),
)
# Of loops of small steps on a CPU with 0.10.2, by the table of docs/versions.md.
_TIMES_AS_LONG = 7
# The first version that has no more bugs than any later one, and the first Python for it.
_BETTER, _ITS_PYTHON = "0.11.2", "3.12"
# What pyproject.toml says.
_SUPPORTED = ">=0.10, !=0.11.1, <0.13"


def bugs_of(jaxlib: str) -> list[str]:
    """Those known bugs of a version of jaxlib that give wrong values or end the process."""
    return [bug.what for bug in _BUGS if bug.is_in(_numbers(jaxlib))]


def advice(jax: str, jaxlib: str) -> str | None:
    """What to know about these versions, and what to do; None where no supported version is better."""
    for package, version in (("jax", jax), ("jaxlib", jaxlib)):
        if _numbers(version) == (0, 11, 1):
            return (
                f"rnnscan excludes {package} {version}: with it a scan with small outputs takes time with the square "
                f"of its steps. Install jax and jaxlib {_SUPPORTED}."
            )
        if not (0, 10) <= _numbers(version) < (0, 13):
            return (
                f"rnnscan excludes {package} {version}, which it was not tested with. "
                f"Install jax and jaxlib {_SUPPORTED}."
            )
    if _numbers(jaxlib) >= _numbers(_BETTER):
        return None
    bugs, remaining = bugs_of(jaxlib), bugs_of(_BETTER)
    is_slower = _numbers(jaxlib) < (0, 11)
    return (
        f"jaxlib {jaxlib} has known bugs that give wrong values or end the process on a CPU: {'; '.join(bugs)}. "
        f"Prefer jax and jaxlib {_BETTER} or later, which need Python {_ITS_PYTHON} or later. Of "
        f"such bugs they have {len(remaining)}: {'; '.join(remaining)}."
        + (f" Small loops take up to {_TIMES_AS_LONG} times as long as with jax 0.12." if is_slower else "")
    )


def warn_once(jax: str, jaxlib: str) -> None:
    """Issue a JaxVersionWarning that points at the line outside of rnnscan that imported it.

    Called where a module is imported, so it happens once a process.
    """
    message = advice(jax, jaxlib)
    if message is None:
        return
    calling_line("rnnscan|importlib|_frozen_importlib").warn(
        message + " docs/versions.md says more. Silence this with "
        'warnings.filterwarnings("ignore", category=rnnscan.JaxVersionWarning).',
        JaxVersionWarning,
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version: (0, 12, 0) of 0.12.0.1 and of 0.12.0rc1."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
