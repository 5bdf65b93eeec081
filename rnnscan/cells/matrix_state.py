"""Cells with a matrix state `(K, V)` for each head, written by outer products and read by queries: linear attention."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rnnscan._util.dtypes import at_least_float32, promoted
from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks, initializers
from rnnscan.cells.base import Cell, Params
from rnnscan.cells.dense import project, with_bias
from rnnscan.cells.heads import check_heads, split_heads
from rnnscan.cells.initializers import Initializer


@dataclass(frozen=True, repr=False)
class MatrixStateCell(Cell):
    """The base of cells with one fused kernel for the input, a matrix state, and a kernel for the heads' outputs.

    Args:
        kernel_init: initializer of each block of the kernel, and of the output kernel.
        heads: the number of states.
        key_size: K, the size of each head's q and k.
        value_size: V, the size of each head's v.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("state",)
    names: ClassVar[tuple[str, ...]] = ("projected", "read")
    output_part: ClassVar[int | None] = None

    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    heads: int = 1
    key_size: int | None = None
    value_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self._title, self.hidden_size, self.heads)
        for size in ("key_size", "value_size"):
            if getattr(self, size) is not None:
                checks.check_size(self._title, size, getattr(self, size))

    @property
    def keys(self) -> int:
        """K, the size of each head's q and k."""
        return self.hidden_size // self.heads if self.key_size is None else self.key_size

    @property
    def values(self) -> int:
        """V, the size of each head's v."""
        return self.hidden_size // self.heads if self.value_size is None else self.value_size

    @property
    def _blocks(self) -> Mapping[str, int]:
        """The sizes of the blocks of the kernel's columns, by name."""
        raise NotImplementedError

    def _make(self, key: Array, input_size: int) -> Params:
        *block_keys, output_key = jax.random.split(key, len(self._blocks) + 1)
        blocks = [
            self.kernel_init(block_key, (input_size, columns), self.param_dtype)
            for block_key, columns in zip(block_keys, self._blocks.values(), strict=True)
        ]
        rows = self.heads * self.values
        return {
            "kernel": jnp.concatenate(blocks, axis=1),
            "output_kernel": self.kernel_init(output_key, (rows, self.hidden_size), self.param_dtype),
        }

    def _project(self, weights: Params, x: Array) -> list[Array]:
        """The blocks of `x W + b`, in at least float32."""
        ends = list(accumulate(self._blocks.values()))[:-1]
        return jnp.split(with_bias(project(x, weights["kernel"]), weights), ends, axis=-1)

    def _by_head(self, *parts: Array) -> list[Array]:
        """Split each last axis into `(heads, ...)`."""
        return [split_heads(part, self.heads) for part in parts]

    def _project_heads(self, weights: Params, by_head: Array, dtype: Any) -> Array:
        """Multiply the heads' outputs, side by side, by the output kernel."""
        side_by_side = lax.collapse(by_head, by_head.ndim - 2).astype(dtype)
        return project(side_by_side, weights["output_kernel"])

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        rows = self.heads * self.values
        return {"kernel": ("D", sum(self._blocks.values())), "output_kernel": (rows, self.hidden_size)}

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        return ((*x.shape[:-1], self.heads, self.keys, self.values),)


def write(
    state: Float[Array, "*batch heads keys values"],
    key: Float[Array, "*batch heads keys"],
    value: Float[Array, "*batch heads values"],
    *,
    decay: Array | None = None,
) -> Float[Array, "*batch heads keys values"]:
    """Compute `decay * S + k v^T` in the dtype of S, which accumulates over the whole sequence."""
    # Rounding k v^T to 16 bits would lose most of what a state of 32 bits is for.
    wide = promoted(state, key)
    written = key.astype(wide)[..., :, None] * value.astype(wide)[..., None, :]
    kept = state if decay is None else over_rows(decay, state) * state
    return (kept + written).astype(state.dtype)


def read(
    query: Float[Array, "*batch heads keys"], state: Float[Array, "*batch heads keys values"]
) -> Float[Array, "*batch heads values"]:
    """Compute `S^T q` in at least float32."""
    wide = at_least_float32(jnp.promote_types(query.dtype, state.dtype))
    return jnp.einsum("...hk,...hkv->...hv", query.astype(wide), state.astype(wide))


def rms_norm(
    z: Float[Array, "*batch units"], scale: Float[Array, "*groups units"], *, epsilon: float
) -> Float[Array, "*batch units"]:
    """Divide the last axis by its root mean square.

        scale * z / sqrt(mean(z^2) + epsilon)

    Args:
        z: the values.
        scale: the factor of each unit, which may differ over the last batch axes.
        epsilon: added to the mean square.

    Returns:
        An array of the same shape, in at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells.matrix_state import rms_norm
        >>> [round(float(y), 3) for y in rms_norm(jnp.array([1.0, 7.0]), jnp.ones(2), epsilon=1e-5)]
        [0.2, 1.4]

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4, with epsilon as in
    `torch.nn.RMSNorm`.
    """
    wide = z.astype(at_least_float32(z.dtype))
    return over_rows(scale, wide) * (wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon))
