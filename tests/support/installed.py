"""What the tests run with: `python installed.py` prints the versions of Python, jax and jaxlib."""

import platform
from importlib.metadata import version


if __name__ == "__main__":
    print(f"Python {platform.python_version()}, jax {version('jax')} and jaxlib {version('jaxlib')}")
