"""Random cells whose leaves depend on each other element by element, with random arguments and options of a scan."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs


UNARY = (
    jnp.tanh,
    jax.nn.sigmoid,
    jnp.sin,
    jax.nn.relu,
    jax.nn.softplus,
    jnp.abs,
    jax.nn.silu,
    lambda v: v / (1 + v * v),
)
BINARY = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    jnp.maximum,
    lambda a, b: jnp.where(a > b, a, 0.5 * b),
    lambda a, b: jax.nn.sigmoid(a) * b,
    lambda a, b: a / (1 + b * b),
)


@dataclass(frozen=True)
class Drawn:
    """A random cell and its call.

    Attributes:
        seed: the seed.
    """

    seed: int

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream])

    @property
    def leaves(self) -> int:
        """The number of leaves of the carry."""
        return int(self._random(0).choice([1, 2, 3, 4], p=[0.5, 0.3, 0.1, 0.1]))

    @property
    def gain(self) -> float:
        """The factor of the recurrent weights. At 10, many cells are chaotic."""
        return float(self._random(1).choice([0.5, 1.0, 2.0, 10.0], p=[0.3, 0.4, 0.2, 0.1]))

    def cell(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step. The same operations are drawn at every call."""
        random, weights = self._random(2), iter(params["recurrent"])
        new = []
        for own in carry:
            # Each leaf reads itself and the next, so that all are one loop.
            values = [own, carry[(len(new) + 1) % len(carry)], x @ params["kernel"], *new]
            for _ in range(int(random.integers(2, 5))):
                pair = [values[int(random.integers(len(values)))] for _ in range(2)]
                value = BINARY[int(random.integers(len(BINARY)))](next(weights) * pair[0], pair[1])
                values.append(UNARY[int(random.integers(len(UNARY)))](value) if random.random() < 0.6 else value)
            decay = jax.nn.sigmoid(values[-1])
            new.append(decay * own + (1 - decay) * jnp.tanh(values[-2] + next(weights) * values[1]))
        if random.random() < 0.3:  # Gates in a row.
            row = jnp.tanh(jnp.concatenate(new, axis=-1))
            new = jnp.split(row, len(new), axis=-1)
        if random.random() < 0.3:
            new[0] = jnp.clip(new[0], -0.9, 0.9)
        return tuple(new), sum(new) * x[..., :1]

    def arguments(self) -> tuple[Any, Any, Any]:
        """Params, carry and xs."""
        random = self._random(3)
        units, rows = int(random.integers(1, 5)), int(random.integers(1, 4))
        steps = int(random.choice([1, 2, 9, 30]))

        def normal(*shape: int) -> Any:
            return jnp.asarray(random.normal(size=shape))

        params = {"kernel": normal(2, units), "recurrent": self.gain * normal(40, units)}
        return params, tuple(normal(rows, units) / 2 for _ in range(self.leaves)), normal(steps, rows, 2)

    def options(self) -> dict[str, Any]:
        """The options that do not change what is kept."""
        random, (_, carry, xs) = self._random(4), self.arguments()
        found: dict[str, Any] = {"reverse": bool(random.random() < 0.3)}
        if random.random() < 0.3:
            found["seq_lengths"] = jnp.asarray(random.integers(0, len(xs) + 1, size=xs.shape[1]))
        if random.random() < 0.2:
            found["reset"] = jnp.asarray(random.random(xs.shape[:2]) < 0.1)
            found["reset_to"] = jax.tree.map(lambda leaf: leaf / 3, carry)
        if random.random() < 0.2:
            found["truncate"] = int(random.integers(1, 12))
        return found

    def memory(self) -> rs.Memory:
        """What is kept."""
        return rs.Memory(segment=None if self._random(5).random() < 0.7 else 10)

    def newton(self) -> rs.Newton:
        """How the loop is solved."""
        return rs.Newton(chunk=int(self._random(6).choice([4, 12, 64])))
