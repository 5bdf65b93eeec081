"""What a training run was asked to do: everything that its losses follow from, beside the text."""

from dataclasses import dataclass
from typing import Literal

import rnnscan as rs
from rnnscan.train.language_model import LanguageModel


@dataclass(frozen=True)
class TrainConfig:
    """A training run's options.

    Args:
        cell: "lstm", "gru" or "rnn".
        hidden: units in each layer.
        layers: cells one above the other.
        embedding: size of the vector that stands for a byte.
        batch: contiguous streams that are trained on side by side.
        window: steps that a gradient goes back through time; the state is carried over from window to window.
        steps: updates of the parameters, one a window.
        learning_rate: the peak learning rate of AdamW.
        seed: of the parameters at the start and of the sample at the end.
        recompute: as in `rnnscan.Memory`.
        segment: as in `rnnscan.Memory`.
        checkpoint_every: steps between two checkpoints.

    Raises:
        TypeError: if `recompute` is not a tuple of names.
        ValueError: if another value cannot be.

    Example:
        >>> TrainConfig(cell="gru", recompute=("gates",)).memory
        Memory(recompute=('gates',))
    """

    cell: Literal["lstm", "gru", "rnn"] = "lstm"
    hidden: int = 256
    layers: int = 1
    embedding: int = 64
    batch: int = 32
    window: int = 64
    steps: int = 700
    learning_rate: float = 8e-3
    seed: int = 0
    recompute: tuple[str, ...] | Literal["all"] = ()
    segment: int | Literal["sqrt"] | tuple[int, ...] | None = None
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        for option in ("batch", "window", "steps", "checkpoint_every"):
            value = getattr(self, option)
            if value < 1:
                raise ValueError(f"TrainConfig: `{option}` must be at least 1; got {value}.")
        if not self.learning_rate > 0:
            raise ValueError(f"TrainConfig: `learning_rate` must be above 0; got {self.learning_rate}.")
        # Made once here, so that values that cannot be are refused before anything is read or computed.
        _ = self.model, self.memory

    @property
    def model(self) -> LanguageModel:
        """The model that is trained."""
        return LanguageModel(cell=self.cell, hidden=self.hidden, layers=self.layers, embedding=self.embedding)

    @property
    def memory(self) -> rs.Memory:
        """The memory choice."""
        return rs.Memory(recompute=self.recompute, segment=self.segment)
