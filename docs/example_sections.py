"""The reference shows the section "Example:" of a docstring as code."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames "Example:" to "Examples:", the only form that griffe knows."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of one docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
