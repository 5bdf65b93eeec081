"""Attributes of modules, named on the command line."""

import importlib
import sys
from typing import Any

from rnnscan._util.messages import nearest


def import_attribute(spec: str, argument: str) -> Any:
    """Import `module:attribute`. The working directory is on the module path.

    Args:
        spec: the module and its attribute.
        argument: the name of the argument, for messages.

    Raises:
        ValueError: if the module or attribute does not exist.

    Example:
        >>> import_attribute("rnnscan.cells:GRU", "CELL").__name__
        'GRU'
    """
    module, _, attribute = spec.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"rnnscan: {argument} must be module:attribute of an importable module; got {spec!r}, and no module "
            f"{error.name!r}. Run the command in the module's folder."
        ) from error
    if not hasattr(imported, attribute):
        known = [name for name in vars(imported) if not name.startswith("_")]
        raise ValueError(
            f"rnnscan: {argument} must be module:attribute; got {spec!r}, and {module} has no {attribute!r}."
            f"{nearest(attribute, known)}"
        )
    return getattr(imported, attribute)
