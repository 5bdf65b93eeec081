"""A byte-level language model: an embedding, a stack of recurrent cells, and a softmax over 256 bytes."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from rnnscan._util.ranks import over_rows
from rnnscan.cells import GRU, LSTM, RNN
from rnnscan.compose import stack
from rnnscan.export.generate import sharpened
from rnnscan.memory import Memory
from rnnscan.scanning import scan
from rnnscan.sharding import rules


BYTES = 256
CELLS = {"lstm": LSTM, "gru": GRU, "rnn": RNN}


@dataclass(frozen=True)
class LanguageModel:
    """A model that predicts each byte of a text from the bytes before it.

        e_t = embedding[byte_t]
        h_t, carry = cells(e_t, carry)
        p(byte_{t+1}) = softmax(h_t W + b)

    Parameters: `"embedding"` `(256, E)`, `"cells"` as `rnnscan.stack` makes them, and `"head"` with `"kernel"` W
    `(H, 256)` and `"bias"` b `(256,)`.

    Args:
        cell: "lstm", "gru" or "rnn".
        hidden: H, the number of units in each layer.
        layers: the number of layers.
        embedding: E, the size of a byte's embedding.

    Raises:
        ValueError: if the cell is unknown or a size is below 1.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> model = LanguageModel(cell="gru", hidden=8, embedding=4)
        >>> params = model.init(jax.random.key(0))
        >>> text = jnp.zeros((6, 2), jnp.int32)  # five steps of two streams, and the byte after them
        >>> loss, carry = model.loss(params, model.initial_carry(2), text[:-1], text[1:])
        >>> loss.shape
        ()
    """

    cell: Literal["lstm", "gru", "rnn"] = "lstm"
    hidden: int = 256
    layers: int = 1
    embedding: int = 64

    def __post_init__(self) -> None:
        if self.cell not in CELLS:
            raise ValueError(f"LanguageModel: `cell` must be one of {', '.join(CELLS)}; got {self.cell!r}.")
        for option in ("hidden", "layers", "embedding"):
            value = getattr(self, option)
            if value < 1:
                raise ValueError(f"LanguageModel: `{option}` must be at least 1; got {value}.")

    @property
    def cells(self) -> Any:
        """The recurrent part, as one cell."""
        return stack(*[CELLS[self.cell](self.hidden)] * self.layers)

    def init(self, key: Array) -> dict[str, Any]:
        """Make parameters: a dictionary of float32 arrays."""
        embedding_key, cells_key, head_key = jax.random.split(key, 3)
        return {
            "embedding": jax.random.normal(embedding_key, (BYTES, self.embedding)),
            "cells": self.cells.init(cells_key, self.embedding),
            "head": {
                "kernel": jax.nn.initializers.lecun_normal()(head_key, (self.hidden, BYTES)),
                "bias": jnp.zeros(BYTES),
            },
        }

    def sharding_rules(self, mesh: Any) -> dict[str, Any]:
        """How the parameters are sharded over the axis `"model"` of a mesh: a pytree of `PartitionSpec`.

        Raises:
            ValueError: if the devices do not divide the units; see `rnnscan.sharding.rules`.
        """
        return {
            "embedding": PartitionSpec(),
            "cells": rules(self.cells, mesh, input_size=self.embedding),
            "head": {"kernel": PartitionSpec("model", None), "bias": PartitionSpec()},
        }

    def initial_carry(self, rows: int) -> Any:
        """The carry of zeros for N streams, leaves `(N, H)`."""
        return self.cells.initial_carry(jnp.zeros((rows, self.embedding)))

    def loss(
        self,
        params: dict[str, Any],
        carry: Any,
        inputs: Int[Array | np.ndarray, "time rows"],
        targets: Int[Array | np.ndarray, "time rows"],
        *,
        memory: Memory | None = Memory(),
    ) -> tuple[Float[Array, ""], Any]:
        """The mean cross-entropy of a window of text.

        Args:
            params: as made by `init`.
            carry: the carry before the window.
            inputs: the bytes of each stream, 0 to 255.
            targets: the bytes that follow them.
            memory: what to keep for the backward pass.

        Returns:
            The loss in nats per byte, and the carry after the window.
        """
        embedded = params["embedding"][inputs]
        carry, hidden = scan(self.cells, params["cells"], carry, embedded, memory=memory)
        return _cross_entropy(params["head"], hidden, targets), carry

    def logits(self, params: dict[str, Any], hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows bytes"]:
        """The logits of the next byte from the outputs of the cells."""
        return _logits(params["head"], hidden)

    def sample(
        self, params: dict[str, Any], key: Array, length: int, *, temperature: float = 1.0, first: int = ord("\n")
    ) -> bytes:
        """Draw text from the model, byte by byte.

        Args:
            params: as made by `init`.
            key: a PRNG key.
            length: the number of bytes.
            temperature: above 0; below 1 it favors likely bytes.
            first: the byte before the text.

        Returns:
            The text.

        Raises:
            ValueError: if the temperature is not above 0.
        """
        if not temperature > 0:
            raise ValueError(f"sample: `temperature` must be above 0; got {temperature}.")
        return bytes(_draw(params, key, jnp.array([first]), temperature, model=self, length=length).tolist())


@partial(jax.jit, static_argnames=("model", "length"))
def _draw(
    params: dict[str, Any],
    key: Array,
    first: Int[Array, "1"],
    temperature: float | Float[Array, ""],
    *,
    model: LanguageModel,
    length: int,
) -> Int[Array, " length"]:
    def draw_byte(params: dict[str, Any], carry: Any, _: None) -> tuple[Any, Array]:
        key, cells_carry, byte = carry
        key, draw_key = jax.random.split(key)
        cells_carry, hidden = model.cells(params["cells"], cells_carry, params["embedding"][byte])
        byte = jax.random.categorical(draw_key, sharpened(_logits(params["head"], hidden), temperature))
        return (key, cells_carry, byte), byte[0]

    carry = (key, model.initial_carry(1), first)
    return scan(draw_byte, params, carry, None, length=length)[1]


# The logits are as large as all residuals of a cell, and one matrix product recomputes them.
@jax.checkpoint
def _cross_entropy(
    head: dict[str, Array], hidden: Float[Array, "time rows hidden"], targets: Int[Array | np.ndarray, "time rows"]
) -> Float[Array, ""]:
    return optax.softmax_cross_entropy_with_integer_labels(_logits(head, hidden), targets).mean()


def _logits(head: dict[str, Array], hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows bytes"]:
    products = hidden @ head["kernel"]
    return products + over_rows(head["bias"], products)
