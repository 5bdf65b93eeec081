"""The packages of the extras of exports, imported where they are used."""

import importlib
from typing import Any


def import_extra(module: str, extra: str = "export") -> Any:
    """Import a module that an extra of rnnscan installs.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"rnnscan.export: the extra {extra!r} must be installed; got no module {error.name!r}. Run "
            f'pip install ".[{extra}]" in the checkout of rnnscan.',
            name=error.name,
        ) from error
