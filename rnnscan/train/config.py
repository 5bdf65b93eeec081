"""The options of a training run."""

from dataclasses import dataclass
from typing import Literal

from rnnscan.memory import Memory
from rnnscan.train.language_model import LanguageModel


@dataclass(frozen=True)
class TrainConfig:
    """A training run's options. With the text, they determine its losses.

    Args:
        cell: "lstm", "gru" or "rnn".
        hidden: units in each layer.
        layers: the number of layers.
        embedding: the size of a byte's embedding.
        batch: the number of contiguous text streams.
        window: the steps that a gradient goes back; the carry passes from window to window.
        steps: updates of the parameters, one for each window.
        learning_rate: the peak learning rate of AdamW.
        seed: the seed of the initial parameters and of the final sample.
        recompute: as in `rnnscan.Memory`.
        segment: as in `rnnscan.Memory`.
        checkpoint_every: steps between two checkpoints.

    Raises:
        TypeError: if `recompute` is not a tuple of names.
        ValueError: if another value is out of range.

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
        _ = self.model, self.memory  # They check their own options.

    @property
    def model(self) -> LanguageModel:
        """The model."""
        return LanguageModel(cell=self.cell, hidden=self.hidden, layers=self.layers, embedding=self.embedding)

    @property
    def memory(self) -> Memory:
        """The memory choice."""
        return Memory(recompute=self.recompute, segment=self.segment)
