"""Linear attention: a matrix state without a decay, and its normalizer."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.ranks import over_rows
from rnnscan.cells import initializers
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.initializers import Initializer
from rnnscan.cells.layer_norm import check_epsilon
from rnnscan.cells.matrix_state import MatrixStateCell, read, write
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class LinearAttention(MatrixStateCell):
    """Causal linear attention. Each head computes

        q = x W_q + b_q    k = x W_k + b_k    v = x W_v + b_v          (named "projected")
        S' = S + phi(k) v^T
        z' = z + phi(k)
        o = S'^T phi(q) / (z' . phi(q) + epsilon)          (both reads named "read")
        y = sum over the heads of o W_o, plus b_o

    where phi(q) = elu(q) + 1, which is positive.

    S' and z' are elementwise linear in S and z, so the engine batches the matrix products over all steps.

    Parameters: `"kernel"` W `(D, heads (2K + V))` and `"bias"` b `(heads (2K + V),)`, order q, k, v, each one head
    after the other; `"output_kernel"` W_o `(heads V, H)` and `"output_bias"` b_o `(H,)`. Without `use_bias` no biases.
    Carry: the tuple `(S, z)`, S `(N, heads, K, V)` and z `(N, heads, K)`.

    Args:
        hidden_size: H, the size of y.
        kernel_init: initializer of each block of the kernel, and of the output kernel.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. S and z grow with the number of steps, and need
            float32 in a 16-bit computation.
        heads: the number of states.
        key_size: K, the size of each head's q and k. None: H / heads.
        value_size: V, the size of each head's v. None: H / heads.
        epsilon: added to the divisor.

    Raises:
        ValueError: if a size or epsilon is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.LinearAttention(6, heads=2)
        >>> x = jnp.ones((5, 3))
        >>> (state, normalizer), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> state.shape, normalizer.shape, y.shape
        ((5, 2, 3, 3), (5, 2, 3), (5, 6))

    Source: Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
    equations 7 and 16 to 20, without the residual connection and the feedforward layer of equation 20. The biases, W_o
    and epsilon are those of the authors' code.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("state", "normalizer")
    parameter_options: ClassVar[tuple[str, ...]] = ("use_bias",)

    _: KW_ONLY
    bias_init: Initializer = initializers.zeros
    use_bias: bool = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("LinearAttention", self.epsilon)

    @property
    def _blocks(self) -> Mapping[str, int]:
        keys = self.heads * self.keys
        return {"query": keys, "key": keys, "value": self.heads * self.values}

    def _make(self, key: Array, input_size: int) -> Params:
        key, *bias_keys = jax.random.split(key, 3)
        params = super()._make(key, input_size)
        if self.use_bias:
            for bias, bias_key in zip(("bias", "output_bias"), bias_keys, strict=True):
                params[bias] = self.bias_init(bias_key, self._shapes()[bias], self.param_dtype)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        parts = name([part.astype(x.dtype) for part in self._project(weights, x)], "projected")
        query, key, value = self._by_head(*parts)
        query, key = _positive(query), _positive(key)
        state, normalizer = write(carry[0], key, value), (carry[1] + key).astype(carry[1].dtype)
        numerator, weight = read(query, state), read(query, normalizer[..., None])
        numerator, weight = name((numerator.astype(x.dtype), weight.astype(x.dtype)), "read")
        y = self._project_heads(weights, numerator / (weight + self.epsilon), x.dtype)
        return (state, normalizer), (y + over_rows(weights["output_bias"], y) if self.use_bias else y).astype(x.dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        biases = {"bias": (sum(self._blocks.values()),), "output_bias": (self.hidden_size,)}
        return super()._shapes() | (biases if self.use_bias else {})

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        return *super()._carry_shapes(x), (*x.shape[:-1], self.heads, self.keys)


def _positive(z: Array) -> Array:
    """Compute `elu(z) + 1`. The sum as it is would round to 0 for z < -17, and with it the divisor."""
    return jnp.exp(jnp.minimum(z, 0)) + jnp.maximum(z, 0)
