"""Training steps of the network of MNIST-1D in torch, to be timed beside those of rnnscan."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn


class Classifier(nn.Module):
    """A bidirectional GRU, and a linear readout of all its steps."""

    def __init__(self, units: int, steps: int, classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(1, units, bidirectional=True)
        self.head = nn.Linear(2 * units * steps, classes)

    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        """The logits, [batch, classes], of xs, [time, batch, 1]."""
        ys, _ = self.gru(xs)
        return self.head(ys.swapaxes(0, 1).flatten(1))


def torch_trainer(xs: np.ndarray, labels: np.ndarray, *, units: int, batch: int, rate: float) -> Callable[[int], None]:
    """A function that trains for a number of steps, with Adam on batches that it draws.

    One thread, because torch 2.13 was 5 times slower with two on a machine of two processors that was busy.

    Args:
        xs: inputs, [time, rows, 1].
        labels: of rows.
        units: of the GRU, in each direction.
        batch: the rows of a batch.
        rate: the learning rate.
    """
    torch.set_num_threads(1)
    inputs, classes = torch.tensor(xs), torch.tensor(labels, dtype=torch.long)
    model = Classifier(units, len(xs), int(classes.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def run(steps: int) -> None:
        for _ in range(steps):
            rows = torch.randperm(len(classes))[:batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[:, rows]), classes[rows]).backward()
            optimizer.step()

    return run
