"""Gated linear attention: a matrix state with a decay for each key."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import project
from rnnscan.cells.layer_norm import check_epsilon, layer_norm
from rnnscan.cells.matrix_state import MatrixStateCell, read, write
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class GLA(MatrixStateCell):
    """Gated linear attention: linear attention with a decay for each key that reads the input. Each head computes

        q = x W_q    k = x W_k / sqrt(K)    v = x W_v    g = x W_g + b_g
        log a = log sigmoid(x W_1 W_2 + b_a) / temperature
        S' = diag(a) S + k v^T
        o = S'^T q          (named "read")
        y = sum over the heads of (silu(g) * (norm_scale * LN(o) + norm_bias)) W_o

    where LN(o) = (o - mean(o)) / sqrt(var(o) + epsilon), for each head on its own. Named "projected": q, k, v, g and
    the argument of the logarithm's sigmoid.

    S' is elementwise linear in S, so the engine batches the matrix products over all steps.

    Parameters: `"kernel"` (W_q, W_k, W_v, W_g, W_1) `(D, heads (2K + 2V) + rank)`, each but W_1 one head after the
    other; `"decay_kernel"` W_2 `(rank, heads K)`, `"decay_bias"` b_a `(heads K,)`, `"gate_bias"` b_g `(heads V,)`,
    `"norm_scale"` and `"norm_bias"` `(V,)`, shared by the heads; `"output_kernel"` W_o `(heads V, H)`.
    Carry: the tuple `(S,)`, S `(N, heads, K, V)`.

    Args:
        hidden_size: H, the size of y.
        kernel_init: initializer of each block of the kernel, of the decay kernel and of the output kernel.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters. The decay a is
            at least float32.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. S needs float32 in a 16-bit computation.
        heads: the number of states.
        key_size: K, the size of each head's q and k. None: H / heads / 2, but at least 1.
        value_size: V, the size of each head's v. None: H / heads. LN needs at least 2.
        decay_rank: the rank of W_1 W_2.
        temperature: divides the logarithm of the decay; a larger one forgets more slowly.
        epsilon: added to the variance.

    Raises:
        ValueError: if a size or a number is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.GLA(8, heads=2)
        >>> x = jnp.ones((5, 3))
        >>> (state,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> state.shape, y.shape
        ((5, 2, 2, 4), (5, 8))

    Source: Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training", equation 3 and
    section 4.4, with its sizes, rank 16 and temperature 16. The factor 1 / sqrt(K) is that of the authors' code.
    """

    _: KW_ONLY
    decay_rank: int = 16
    temperature: float = 16.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_size("GLA", "decay_rank", self.decay_rank)
        check_epsilon("GLA", self.epsilon)
        if not self.temperature > 0:
            raise ValueError(f"GLA: `temperature` must be a number above 0; got {self.temperature!r}.")

    @property
    def keys(self) -> int:
        """K, the size of each head's q and k."""
        return max(1, self.hidden_size // self.heads // 2) if self.key_size is None else self.key_size

    @property
    def _blocks(self) -> Mapping[str, int]:
        keys, values = self.heads * self.keys, self.heads * self.values
        return {"query": keys, "key": keys, "value": values, "gate": values, "decay": self.decay_rank}

    def _make(self, key: Array, input_size: int) -> Params:
        key, decay_key = jax.random.split(key)
        dtype, shapes = self.param_dtype, self._shapes()
        return super()._make(key, input_size) | {
            "decay_kernel": self.kernel_init(decay_key, shapes["decay_kernel"], dtype),
            "decay_bias": jnp.zeros(shapes["decay_bias"], dtype),
            "gate_bias": jnp.zeros(shapes["gate_bias"], dtype),
            "norm_scale": jnp.ones(self.values, dtype),
            "norm_bias": jnp.zeros(self.values, dtype),
        }

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        query, key, value, gate, log_decay = self._projected(weights, x)
        state = write(carry[0], key, value, decay=jnp.exp(log_decay)[..., None])
        output = name(read(query, state).astype(x.dtype), "read")
        normalized = layer_norm(output, weights["norm_scale"], epsilon=self.epsilon)
        normalized += over_rows(weights["norm_bias"], normalized)
        return (state,), self._project_heads(weights, jax.nn.silu(gate) * normalized, x.dtype).astype(x.dtype)

    def _projected(self, weights: Params, x: Array) -> list[Array]:
        """Compute q, k, v, g and the logarithm of the decay by head."""
        query, key, value, gate, narrow = self._project(weights, x)
        decay = project(narrow.astype(x.dtype), weights["decay_kernel"])
        decay += over_rows(weights["decay_bias"], decay)
        parts = [query, key / self.keys**0.5, value, gate + over_rows(weights["gate_bias"], gate), decay]
        *parts, decay = self._by_head(*name([part.astype(x.dtype) for part in parts], "projected"))
        # For a near 1, a - 1 loses its digits in 16 bits.
        log_decay = jax.nn.log_sigmoid(decay.astype(at_least_float32(x.dtype))) / self.temperature
        return [*parts, log_decay]

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        keys, values = self.heads * self.keys, self.heads * self.values
        return super()._shapes() | {
            "decay_kernel": (self.decay_rank, keys),
            "decay_bias": (keys,),
            "gate_bias": (values,),
            "norm_scale": (self.values,),
            "norm_bias": (self.values,),
        }
