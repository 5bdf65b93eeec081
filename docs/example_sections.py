"""The reference shows what stands under "Example:" in a docstring as the code that it is."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Tells griffe, which knows "Examples:" only, what an "Example:" is."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of one docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
