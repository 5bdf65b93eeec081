"""Keras on JAX, imported when a test first reads a name: that takes seconds, and each worker collects all tests."""

import os
from typing import Any


# Keras reads its backend once, where it is imported.
os.environ["KERAS_BACKEND"] = "jax"


def __getattr__(name: str) -> Any:
    import keras

    return getattr(keras, name)
