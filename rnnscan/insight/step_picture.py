"""The picture of a step as a figure of matplotlib, which needs the extra `plot`."""

from collections.abc import Sequence
from typing import Any

from rnnscan.insight.explain import Explanation


def step_figure(explanation: Explanation, carry_names: Sequence[str], title: str = "") -> Any:
    """Draw an explanation of `rnnscan.explain` with matplotlib. `Explanation.draw` needs no other package.

    Args:
        explanation: the explanation.
        carry_names: a name for each leaf of the carry.
        title: the title.

    Returns:
        A matplotlib figure.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there is not one name for each leaf of the carry.
    """
    return explanation.draw(direction="right", names=carry_names, title=title).figure()
