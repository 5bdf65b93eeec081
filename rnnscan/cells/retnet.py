"""The retention of RetNet: a matrix state with a fixed decay for each head."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.layer_norm import check_epsilon, layer_norm
from rnnscan.cells.matrix_state import MatrixStateCell, read, write
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class RetNet(MatrixStateCell):
    """The multi-scale retention of RetNet: linear attention with a fixed decay for each head h = 0, 1, ...

        q = x W_q    k = x W_k / sqrt(K)    v = x W_v    g = x W_g          (named "projected")
        log a = log(1 - 2 ** (-5 - h))
        S' = a S + k v^T
        o = S'^T q          (named "read")
        y = sum over the heads of (silu(g) * LN(o)) W_o

    where LN(o) = (o - mean(o)) / sqrt(var(o) + epsilon), for each head on its own: a group norm without parameters.
    The rotation of q and k by the position (xPos) is left out.

    S' is elementwise linear in S, so the engine batches the matrix products over all steps.

    Parameters: `"kernel"` W `(D, heads (2K + 2V))`, order q, k, v, g, each one head after the other;
    `"output_kernel"` W_o `(heads V, H)`.
    Carry: the tuple `(S,)`, S `(N, heads, K, V)`.

    Args:
        hidden_size: H, the size of y.
        kernel_init: initializer of each block of the kernel, and of the output kernel.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters. The decay a is
            at least float32.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. S needs float32 in a 16-bit computation.
        heads: the number of states.
        key_size: K, the size of each head's q and k. None: H / heads.
        value_size: V, the size of each head's v. None: 2 H / heads. LN needs at least 2.
        epsilon: added to the variance.

    Raises:
        ValueError: if a size or epsilon is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.RetNet(6, heads=2)
        >>> x = jnp.ones((5, 3))
        >>> (state,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> state.shape, y.shape
        ((5, 2, 3, 6), (5, 6))

    Source: Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language Models", equations 6 and
    8, and 1 / sqrt(K) of section 2.2. The norm without parameters is that of the authors' code.
    """

    _: KW_ONLY
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("RetNet", self.epsilon)

    @property
    def values(self) -> int:
        """V, the size of each head's v."""
        return 2 * self.hidden_size // self.heads if self.value_size is None else self.value_size

    @property
    def _blocks(self) -> Mapping[str, int]:
        keys, values = self.heads * self.keys, self.heads * self.values
        return {"query": keys, "key": keys, "value": values, "gate": values}

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        query, key, value, gate = self._project(weights, x)
        parts = name([part.astype(x.dtype) for part in (query, key / self.keys**0.5, value, gate)], "projected")
        query, key, value, gate = self._by_head(*parts)
        log_decay = jnp.asarray(np.log1p(-np.exp2(-5.0 - np.arange(self.heads))), at_least_float32(x.dtype))
        state = write(carry[0], key, value, decay=jnp.exp(log_decay)[:, None, None])
        output = name(read(query, state).astype(x.dtype), "read")
        normalized = layer_norm(output, jnp.ones(self.values, output.dtype), epsilon=self.epsilon)
        return (state,), self._project_heads(weights, jax.nn.silu(gate) * normalized, x.dtype).astype(x.dtype)
