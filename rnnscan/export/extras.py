"""The packages of the extra `export`, imported where they are used."""

import importlib
from typing import Any


def import_extra(module: str) -> Any:
    """Import a module that the extra `export` installs.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"rnnscan.export: the extra 'export' must be installed; got no module {error.name!r}. Run "
            'pip install ".[export]" in the checkout of rnnscan.'
        ) from error
