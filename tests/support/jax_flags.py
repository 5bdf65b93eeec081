"""With which of JAX's flags tests can run: `python jax_flags.py JAX_SCAN3 JAX_REMAT3` prints them.

JAX ignores a variable of the environment that it does not know, so tests with such a flag would be tests without one.
With JAX_SCAN3 nearly all tests fail, as long as JAX cannot differentiate its own scan with it.
"""

import sys
from collections.abc import Iterable

import jax

from known_bugs import Bug


def known(flags: Iterable[str]) -> list[str]:
    """Those of the flags that the installed jax knows."""
    return [flag for flag in flags if hasattr(jax.config, flag.lower())]


def usable(flags: Iterable[str]) -> list[str]:
    """Those that the installed jax knows, without JAX_SCAN3 where that jax has no gradient of its scan."""
    has_no_gradient = Bug("gradient_with_scan3.py", "`JAX_SCAN3=1`", None).shows()
    return [flag for flag in known(flags) if flag != "JAX_SCAN3" or not has_no_gradient]


if __name__ == "__main__":
    print(*usable(sys.argv[1:]))
