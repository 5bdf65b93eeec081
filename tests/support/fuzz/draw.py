"""Decisions at random, the same ones each time that a cell is traced, and the values that a cell has so far."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs


_Item = TypeVar("_Item")

LABELS = ("gates", "scores", "state", "mixed")
WIDEST = 4

# All are bounded, or grow slowly: what rounds differently in two programs must not be blown up over the steps.
FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    jnp.tanh,
    jnp.sin,
    jax.nn.sigmoid,
    jax.nn.softplus,
    jax.nn.silu,
    jnp.arctan,
    jax.lax.erf,
    lambda value: value / (1 + value * value),
    lambda value: jnp.exp(-(value**2)),
    lambda value: jnp.sqrt(1 + value**2),
    lambda value: jax.lax.rsqrt(1 + jax.lax.square(value)),
    lambda value: -value,
    lambda value: 0.5 * value,
)


class Draw:
    """What a cell is made with, for one trace of it.

    A cell decides anew each time that it is traced, from the same seed, so it decides the same. A function within it
    (a branch, the body of a loop) may be traced more often, so what is decided for it is decided outside of it.

    Attributes:
        batch: number of rows of every value.
        values: floats `(batch, width)` that can be computed with.
        indices: integers `(batch,)`.
        features: what the cell has, in words.
        labels: the names that it gives.
        chosen: for each row whether a select takes what is computed, `(batch,)`; none: the step has no such input.
    """

    def __init__(
        self, seed: int, batch: int, arrays: dict[str, list[Any]], *, inner: dict[str, Any] | None, names: bool
    ) -> None:
        """A draw.

        Args:
            seed: of all decisions.
            batch: number of rows.
            arrays: those that the cell asks for, "params" and "closed"; where there are too few, they are made.
            inner: options of the scans within the cell; None: as they are drawn.
            names: whether it gives names. Only scan can take all: JAX 0.10 under JAX_REMAT3=1 has none within a vmap.
        """
        self.batch = batch
        self.values: list[Any] = []
        self.indices: list[Any] = []
        self.features: set[str] = set()
        self.labels: dict[str, None] = {}
        self.chosen: Any = None
        self._random = np.random.default_rng([seed, 1])
        self._seed = seed
        self._inner = inner
        self._names = names
        self._arrays = arrays
        self._asked: dict[str, int] = dict.fromkeys(("params", "closed", "constant"), 0)
        self._used: list[Any] = []
        self._free: list[Any] = []

    def chance(self, probability: float) -> bool:
        return bool(self._random.random() < probability)

    def integer(self, least: int, most: int) -> int:
        return int(self._random.integers(least, most + 1))

    def number(self) -> float:
        return float(self._random.normal())

    def pick(self, items: Sequence[_Item]) -> _Item:
        return items[int(self._random.integers(len(items)))]

    def pick_late(self, items: Sequence[_Item]) -> _Item:
        """One of the items, the later ones more often, so that what is computed is used."""
        return items[int(len(items) * self._random.random() ** 0.5)]

    def function(self) -> Callable[[Any], Any]:
        return self.pick(FUNCTIONS)

    def weights(self, *shape: int) -> Any:
        """Floats that are the same at every step: parameters, closed over or constant; sometimes those of elsewhere."""
        if len(shape) == 2 and self.chance(0.15):
            self.features.add("weights from weights")
            return self._from_weights(*shape)
        same = [array for array in self._used if array.shape == shape]
        if same and self.chance(0.3):
            self.features.add("weights used twice")
            array = self.pick(same)
        else:
            where = self.pick(["params", "params", "params", "closed", "constant"])
            array = self._array(where, shape, float32=self.chance(0.05))
            self._used.append(array)
        if array.dtype == jnp.float32:
            self.features.add("parameters in float32")
        return jnp.asarray(array).astype(jnp.float64)

    def _from_weights(self, height: int, width: int) -> Any:
        """What a gradient goes through on its way to the weights themselves, once and not at every step."""
        match self.integer(0, 3):
            case 0:
                return self.weights(height, 2) @ self.weights(2, width)
            case 1:
                return -self.weights(width, height).T
            case 2:
                return self.weights(height * width).reshape(height, width)
            case _:
                return jnp.tanh(self.weights(height, width)) - self.weights(width)

    def _array(self, where: str, shape: tuple[int, ...], *, float32: bool) -> Any:
        self.features.add(f"weights: {where}")
        index = self._asked[where]
        self._asked[where] += 1
        if where != "constant" and index < len(self._arrays[where]):
            return self._arrays[where][index]
        random = np.random.default_rng([self._seed, 2, len(self._used)])
        scale = 0.8 / np.sqrt(shape[-2]) if len(shape) > 1 else 0.6
        array = (random.normal(size=shape) * scale).astype(np.float32 if float32 else np.float64)
        if where != "constant":
            self._arrays[where].append(array)
        return array

    def add(self, value: Any, *, free: bool) -> None:
        """Let a value be computed with. It is free if it depends on no carry."""
        if value.shape[1] > WIDEST:
            value = value[:, :WIDEST]
        self.values.append(value)
        if free:
            self._free.append(value)

    def value(self, width: int | None = None, *, free: bool = False) -> Any:
        """One of the values, made to fit a width."""
        value = self.pick_late(self._free if free else self.values)
        if width is None or value.shape[1] == width:
            return value
        if self.chance(0.6):
            return value @ self.weights(value.shape[1], width)
        return jnp.concatenate([value] * width, axis=1)[:, :width]

    def fed(self, width: int) -> Any:
        """A value to feed a carry with. One that depends on carries is squashed, or their loop could grow."""
        if self.chance(0.5):
            return self.value(width, free=True)
        return jnp.tanh(self.value(width))

    def pair(self) -> tuple[Any, Any]:
        """Two values of one width."""
        value = self.value()
        return value, self.value(value.shape[1])

    def index(self, size: int) -> Any:
        """Integers `(batch,)` from 0 to size - 1."""
        if self.indices and self.chance(0.7):
            return self.pick(self.indices) % size
        # With weights of its own no two elements are alike, whose order would be that of their rounding.
        value = self.value(size)
        return jnp.argmax(value + self.weights(size), axis=1)

    def label(self) -> str | None:
        """A name, or none."""
        return self.any_label() if self.chance(0.4) else None

    def any_label(self) -> str:
        """A name."""
        label = self.pick(LABELS)
        self.labels[label] = None
        return label

    def named(self, value: Any, label: str | None) -> Any:
        return rs.name(value, label) if self._names and label is not None else value

    def inner(self, **drawn: Any) -> dict[str, Any]:
        """Options of a scan within the cell."""
        return drawn if self._inner is None else self._inner
