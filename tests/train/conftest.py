import numpy as np
import pytest

from rnnscan.train import Text


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def text() -> Text:
    """A short text that a small model can learn."""
    content = np.frombuffer(b"recurrent networks " * 60, np.uint8)
    return Text(content[:1000], content[1000:], train_files=1, held_out_files=1)
