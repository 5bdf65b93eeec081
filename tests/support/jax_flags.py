"""Which of JAX's flags the installed jax knows: `python jax_flags.py JAX_SCAN3 JAX_REMAT3` prints them.

JAX ignores a variable of the environment that it does not know, so tests with such a flag would be tests without one.
"""

import sys
from collections.abc import Iterable

import jax


def known(flags: Iterable[str]) -> list[str]:
    """Those of the flags that the installed jax knows."""
    return [flag for flag in flags if hasattr(jax.config, flag.lower())]


if __name__ == "__main__":
    print(*known(sys.argv[1:]))
