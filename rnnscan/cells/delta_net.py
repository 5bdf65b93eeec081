"""DeltaNet: a matrix state that replaces the value of a key, instead of adding to it."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.layer_norm import check_epsilon
from rnnscan.cells.matrix_state import MatrixStateCell, read, rms_norm, write
from rnnscan.naming import name


# Added to the squared length of q and of k, so that the gradient at 0 is finite.
_LEAST_SQUARE = 1e-6


@dataclass(frozen=True, repr=False)
class DeltaNet(MatrixStateCell):
    """DeltaNet: linear attention by the delta rule, which replaces the value of a key. Each head computes

        [q_0 k_0 v_0 b] = x W          (named "projected")
        q = silu(q_0) / |silu(q_0)|    k = silu(k_0) / |silu(k_0)|    v = silu(v_0)    beta = sigmoid(b)
        u = beta (v - S^T k)          (named "change")
        S' = S + k u^T
        o = S'^T q          (named "read")
        y = sum over the heads of (norm_scale * o / sqrt(mean(o^2) + epsilon)) W_o

    where |z| = sqrt(sum(z^2) + 1e-6). S^T k runs in the loop, and all other products are batched over all steps. Given
    u, S' is elementwise linear in S: while "change" is kept, the backward pass recomputes S from a few kept states.
    The short convolutions of the paper are left out.

    Parameters: `"kernel"` W `(D, heads (2K + V + 1))`, order q, k, v, b, each one head after the other;
    `"norm_scale"` `(V,)`, shared by the heads; `"output_kernel"` W_o `(heads V, H)`.
    Carry: the tuple `(S,)`, S `(N, heads, K, V)`.

    Args:
        hidden_size: H, the size of y.
        kernel_init: initializer of each block of the kernel, and of the output kernel.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. S needs float32 in a 16-bit computation.
        heads: the number of states.
        key_size: K, the size of each head's q and k. None: H / heads.
        value_size: V, the size of each head's v. None: H / heads.
        epsilon: added to the mean square of o.

    Raises:
        ValueError: if a size or epsilon is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.DeltaNet(6, heads=2)
        >>> x = jnp.ones((5, 3))
        >>> (state,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> state.shape, y.shape
        ((5, 2, 3, 3), (5, 6))

    Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", section 2.2,
    where S is the transpose, and the layer of its "DeltaNet Transformer". The 1e-6 in |z|, the length of q and k, is
    that of the authors' code, and is not `epsilon`.
    """

    names: ClassVar[tuple[str, ...]] = ("projected", "change", "read")

    _: KW_ONLY
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("DeltaNet", self.epsilon)

    @property
    def _blocks(self) -> Mapping[str, int]:
        keys = self.heads * self.keys
        return {"query": keys, "key": keys, "value": self.heads * self.values, "rate": self.heads}

    def _make(self, key: Array, input_size: int) -> Params:
        return super()._make(key, input_size) | {"norm_scale": jnp.ones(self.values, self.param_dtype)}

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        parts = name([part.astype(x.dtype) for part in self._project(weights, x)], "projected")
        *parts, rate = self._by_head(*parts)
        query, key, value = map(jax.nn.silu, parts)
        query, key = _unit(query), _unit(key)
        wide = at_least_float32(x.dtype)
        change = jax.nn.sigmoid(rate.astype(wide)) * (value.astype(wide) - read(key, carry[0]))
        # A kept change of V numbers saves keeping the state of K V numbers at each step.
        change = name(change, "change")
        state = write(carry[0], key, change)
        output = name(read(query, state).astype(x.dtype), "read")
        normalized = rms_norm(output, weights["norm_scale"], epsilon=self.epsilon)
        return (state,), self._project_heads(weights, normalized, x.dtype).astype(x.dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | {"norm_scale": (self.values,)}


def _unit(z: Array) -> Array:
    """Divide the last axis by its length, in at least float32."""
    wide = z.astype(at_least_float32(z.dtype))
    return wide * lax.rsqrt(jnp.square(wide).sum(-1, keepdims=True) + _LEAST_SQUARE)
