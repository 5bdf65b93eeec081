"""The mixer of Mamba-2: a state space with a scalar decay for each head (SSD)."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.heads import split_heads
from rnnscan.cells.layer_norm import check_epsilon
from rnnscan.cells.matrix_state import MatrixStateCell, read, rms_norm, write
from rnnscan.cells.step_sizes import check_range, step_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class Mamba2(MatrixStateCell):
    """The mixer of Mamba-2: a causal convolution, a state space with a scalar decay for each head (SSD), and a gate.

        [z u_t d] = x W          (named "projected")
        [v k q] = silu(sum_i c_i * u_{t-i} + b_c), over the last `window` steps
        dt = softplus(d + b_d)
        log a = -dt exp(A)
        S' = a S + k (dt v)^T
        o = S'^T q          (named "read")
        y = (norm_scale * RMS((o + skip v) * silu(z))) W_o

    where RMS(u) = u / sqrt(mean(u^2) + epsilon), over the values of a group of heads, and y sums over all heads. Each
    head has its own dt, A, skip, v and z; the heads of a group share k and q. In the paper k is B, q is C and v is X.

    S' is elementwise linear in S, so the engine batches the matrix products over all steps.

    Parameters: `"kernel"` W `(D, 2 heads V + 2 groups K + heads)`, order z, v, k, q, d, each one head or group after
    the other; `"convolution_kernel"` c `(window, heads V + 2 groups K)`, the oldest step first, and
    `"convolution_bias"` b_c; `"step_bias"` b_d, `"log_decay"` A and `"skip"`, each `(heads,)`; `"norm_scale"`
    `(heads V,)`; `"output_kernel"` W_o `(heads V, H)`.
    Carry: the tuple `(S, u)`, S `(N, heads, K, V)` and u `(N, window - 1, heads V + 2 groups K)`, the oldest first. The
    initial zeros are the padding of a causal convolution.

    Args:
        hidden_size: H, the size of y.
        kernel_init: initializer of each block of the kernel, of the convolution and of the output kernel.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters. dt and a are at
            least float32.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. S needs float32 in a 16-bit computation.
        heads: the number of states.
        key_size: K, the size of the state for each value. None: 128.
        value_size: V, the size of each head's v. None: 2 H / heads.
        groups: the number of groups of heads.
        window: the number of steps that the convolution reads, including its own.
        step_range: the range of the initial dt for d = 0, from which `init` draws log-uniformly.
        decay_range: the range of the initial exp(A), from which `init` draws uniformly.
        epsilon: added to the mean square.

    Raises:
        ValueError: if a size or a number is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.Mamba2(6, heads=2, key_size=4)
        >>> x = jnp.ones((5, 3))
        >>> (state, window), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> state.shape, window.shape, y.shape
        ((5, 2, 4, 6), (5, 3, 20), (5, 6))

    Source: Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured
    State Space Duality", section 7 and figure 6, with the sizes, the norm after the gate and the initial values of the
    authors' code.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("state", "inputs")

    _: KW_ONLY
    groups: int = 1
    window: int = 4
    step_range: tuple[float, float] = (0.001, 0.1)
    decay_range: tuple[float, float] = (1.0, 16.0)
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_size("Mamba2", "window", self.window)
        checks.check_size("Mamba2", "groups", self.groups)
        if self.heads % self.groups:
            raise ValueError(f"Mamba2: `groups` must divide `heads`, {self.heads}; got {self.groups}.")
        check_range("Mamba2", "step_range", self.step_range)
        check_range("Mamba2", "decay_range", self.decay_range)
        check_epsilon("Mamba2", self.epsilon)

    @property
    def keys(self) -> int:
        """K, the size of the state for each value."""
        return 128 if self.key_size is None else self.key_size

    @property
    def values(self) -> int:
        """V, the size of each head's v."""
        return 2 * self.hidden_size // self.heads if self.value_size is None else self.value_size

    @property
    def _blocks(self) -> Mapping[str, int]:
        keys, values = self.groups * self.keys, self.heads * self.values
        return {"gate": values, "value": values, "key": keys, "query": keys, "step": self.heads}

    @property
    def _channels(self) -> int:
        return self.heads * self.values + 2 * self.groups * self.keys

    def _make(self, key: Array, input_size: int) -> Params:
        key, convolution_key, step_key, decay_key = jax.random.split(key, 4)
        dtype, heads = self.param_dtype, (self.heads,)
        low, high = self.decay_range
        return super()._make(key, input_size) | {
            "convolution_kernel": self.kernel_init(convolution_key, (self.window, self._channels), dtype),
            "convolution_bias": jnp.zeros(self._channels, dtype),
            "step_bias": step_bias(step_key, self.heads, self.step_range, dtype),
            "log_decay": jnp.log(jax.random.uniform(decay_key, heads, minval=low, maxval=high)).astype(dtype),
            "skip": jnp.ones(heads, dtype),
            "norm_scale": jnp.ones(self.heads * self.values, dtype),
        }

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (_, earlier), x = self._enter(params, carry, x)
        gate, *inputs, step = self._project(weights, x)
        parts = gate, jnp.concatenate(inputs, axis=-1), step
        gate, now, step = name([part.astype(x.dtype) for part in parts], "projected")
        seen = [*(earlier[..., past, :] for past in range(self.window - 1)), now]
        query, key, value = self._convolve(weights, seen)
        # Errors of a grow with its powers over time, so its parameters are not cast to a narrower dtype.
        wide = at_least_float32(x.dtype)
        step = jax.nn.softplus(step.astype(wide) + over_rows(params["step_bias"].astype(wide), step))
        log_decay = -step * over_rows(jnp.exp(params["log_decay"].astype(wide)), step)
        state = write(carry[0], key, step[..., None] * value, decay=jnp.exp(log_decay)[..., None, None])
        output = (
            name(read(query, state).astype(x.dtype), "read").astype(wide)
            + over_rows(weights["skip"][:, None], value) * value
        )
        y = self._project_heads(weights, self._gated(weights, output, gate.astype(wide)), x.dtype)
        window = jnp.stack(seen[1:], axis=-2).astype(carry[1].dtype) if self.window > 1 else carry[1]
        return (state, window), y.astype(x.dtype)

    def _convolve(self, weights: Params, seen: list[Array]) -> tuple[Array, Array, Array]:
        """Compute q, k and v of each head from the inputs of the last steps. The sum is rounded only once."""
        dtype = seen[-1].dtype
        wide = at_least_float32(dtype)
        pairs = zip(weights["convolution_kernel"].astype(wide), seen, strict=True)
        bias = over_rows(weights["convolution_bias"].astype(wide), seen[-1])
        convolved = sum((over_rows(kernel, past) * past for kernel, past in pairs), bias)
        convolved = jax.nn.silu(convolved).astype(dtype)
        values, keys = self.heads * self.values, self.groups * self.keys
        value, *of_groups = jnp.split(convolved, [values, values + keys], axis=-1)
        (value,) = self._by_head(value)
        key, query = map(self._by_group, of_groups)
        return query, key, value

    def _by_group(self, part: Array) -> Array:
        """Give each head `(heads, K)` the part of its group."""
        batch = part.shape[:-1]
        by_group = part.reshape(*batch, self.groups, 1, self.keys)
        repeated = jnp.broadcast_to(by_group, (*batch, self.groups, self.heads // self.groups, self.keys))
        return repeated.reshape(*batch, self.heads, self.keys)

    def _gated(self, weights: Params, output: Array, gate: Array) -> Array:
        """Gate and normalize the values `(heads, V)`; the norm is over a group."""
        grouped = split_heads(output.reshape(gate.shape) * jax.nn.silu(gate), self.groups)
        scale = weights["norm_scale"].reshape(self.groups, -1)
        (by_head,) = self._by_head(rms_norm(grouped, scale, epsilon=self.epsilon).reshape(gate.shape))
        return by_head

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | {
            "convolution_kernel": (self.window, self._channels),
            "convolution_bias": (self._channels,),
            "step_bias": (self.heads,),
            "log_decay": (self.heads,),
            "skip": (self.heads,),
            "norm_scale": (self.heads * self.values,),
        }

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        return *super()._carry_shapes(x), (*x.shape[:-1], self.window - 1, self._channels)
