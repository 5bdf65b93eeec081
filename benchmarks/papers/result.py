"""A published figure, and ours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A published figure, and ours.

    Attributes:
        task: the task and the model.
        what: what the figure is.
        published: the published figure, in words.
        ours: ours, in words.
        met: whether ours is within the published spread.
        seconds: the time that ours took, compilation included.
        source: the paper, code or formula of the published figure.
    """

    task: str
    what: str
    published: str
    ours: str
    met: bool
    seconds: float
    source: str
