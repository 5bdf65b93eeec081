"""The mLSTM of xLSTM: a matrix memory with exponential gates that read only the input."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells import initializers
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, project
from rnnscan.cells.exponential_gates import check_forget_gate, largest_exponent, log_of_forget_gate
from rnnscan.cells.heads import check_heads
from rnnscan.cells.initializers import Initializer
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class MLSTM(InputKernelCell):
    """The LSTM with a matrix memory and exponential gates (mLSTM). Each head of d = H / heads units computes

        q = x W_q + b_q    k = x W_k / sqrt(d) + b_k    v = x W_v + b_v    o = sigmoid(x W_o + b_o)
        log i = x w_i + c_i    log f = log sigmoid(x w_f + c_f)
        m' = max(log f + m, log i)
        C' = exp(log f + m - m') * C + exp(log i - m') * v k^T
        n' = exp(log f + m - m') * n + exp(log i - m') * k
        y = o * C' q / max(|n' . q|, exp(-m'))

    With `forget_gate="exp"`, log f = x w_f + c_f. Named "projected": q, k, v and o. Named "gates": log i and log f. All
    are named before their activations.

    C and n are stored divided by exp(m), which does not change y: without m, the cell would have the states C exp(m)
    and n exp(m), and the bound 1 instead of exp(-m'). The initial state is zero for any m. Given m, C and n are
    elementwise linear, and no matrix product depends on the carry.

    Parameters: `"kernel"` W `(D, 4H)` and `"bias"` b `(4H,)`, order q, k, v, o, each one head after the other;
    `"gate_kernel"` w `(D, 2 heads)` and `"gate_bias"` c `(2 heads,)`, order i, f.
    Carry: the tuple `(C, n, m)`, C `(N, heads, d, d)` with v along its rows and k along its columns, n `(N, heads, d)`,
    m `(N, heads)`.

    Args:
        hidden_size: H, the size of y.
        kernel_init: initializer of each block of the kernel.
        gate_kernel_init: initializer of each gate's kernel.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. C, n and m need float32 in a 16-bit computation.
        heads: the number of memories.
        forget_gate: "sigmoid" or "exp".
        forget_bias: added by `init` to the forget gates' bias, evenly spaced over the heads from the first number to
            the second. Unused without biases.

    Raises:
        ValueError: if a size or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.MLSTM(6, heads=2)
        >>> x = jnp.ones((5, 3))
        >>> carry, y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> [part.shape for part in carry], y.shape
        ([(5, 2, 3, 3), (5, 2, 3), (5, 2)], (5, 6))

    Source: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", equations 19 to 27, with m as in equations 15 to
    17. forget_bias and the initial gate kernel of zeros are those of the authors' code.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("memory", "normalizer", "stabilizer")
    names: ClassVar[tuple[str, ...]] = ("projected", "gates")
    output_part: ClassVar[int | None] = None

    _: KW_ONLY
    gate_kernel_init: Initializer = initializers.zeros
    heads: int = 1
    forget_gate: str = "sigmoid"
    forget_bias: tuple[float, float] = (3.0, 6.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads("MLSTM", self.hidden_size, self.heads)
        check_forget_gate("MLSTM", self.forget_gate, self.forget_bias)

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, gate_kernel_key, bias_key, gate_bias_key = jax.random.split(key, 4)
        units, heads, dtype = self.hidden_size, self.heads, self.param_dtype
        params = {
            "kernel": initializers.by_block(self.kernel_init, kernel_key, input_size, units, 4, dtype),
            "gate_kernel": initializers.by_block(self.gate_kernel_init, gate_kernel_key, input_size, heads, 2, dtype),
        }
        if self.use_bias:
            params["bias"] = self.bias_init(bias_key, (4 * units,), dtype)
            spaced = jnp.linspace(*self.forget_bias, heads, dtype=dtype)
            params["gate_bias"] = self.bias_init(gate_bias_key, (2 * heads,), dtype).at[heads:].add(spaced)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        query, key, value, output = self._projected(weights, x)
        # The states accumulate over the whole sequence, so they are updated in their own dtypes.
        memory, normalizer, stabilizer = carry
        new_stabilizer, keep, write = self._gates(weights, x, stabilizer)
        written = (write * value)[..., :, None] * key[..., None, :]
        new_memory = (keep[..., None] * memory + written).astype(memory.dtype)
        new_normalizer = (keep * normalizer + write * key).astype(normalizer.dtype)
        read = _read(new_memory, new_normalizer, new_stabilizer, query)
        y = jax.nn.sigmoid(output) * read.reshape(output.shape)
        return (new_memory, new_normalizer, new_stabilizer), y.astype(x.dtype)

    def _projected(self, weights: Params, x: Array) -> tuple[Array, Array, Array, Array]:
        """Compute q, k and v by head, and o before the sigmoid."""
        query, key, value, output = jnp.split(project(x, weights["kernel"]), 4, axis=-1)
        key /= (self.hidden_size // self.heads) ** 0.5
        parts = [query, key, value, output]
        if self.use_bias:
            parts = [part + bias for part, bias in zip(parts, jnp.split(weights["bias"], 4), strict=True)]
        query, key, value, output = name([part.astype(x.dtype) for part in parts], "projected")
        query, key, value = (part.reshape(*x.shape[:-1], self.heads, -1) for part in (query, key, value))
        return query, key, value, output

    def _gates(self, weights: Params, x: Array, stabilizer: Array) -> tuple[Array, Array, Array]:
        """Compute m', and the factors `(N, heads, 1)` of the old state and of the update."""
        products = project(x, weights["gate_kernel"])
        if self.use_bias:
            products += weights["gate_bias"]
        gates = name(products.astype(x.dtype), "gates")
        log_input, forget = jnp.split(gates.astype(stabilizer.dtype), 2, axis=-1)
        scaled_forget = log_of_forget_gate(self.forget_gate, forget) + stabilizer
        new_stabilizer = jnp.maximum(scaled_forget, log_input)
        keep, write = (jnp.exp(scaled - new_stabilizer)[..., None] for scaled in (scaled_forget, log_input))
        return new_stabilizer, keep, write

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        shapes: dict[str, tuple[Any, ...]] = {
            "kernel": ("D", 4 * self.hidden_size),
            "gate_kernel": ("D", 2 * self.heads),
        }
        biases = {"bias": (4 * self.hidden_size,), "gate_bias": (2 * self.heads,)}
        return shapes | (biases if self.use_bias else {})

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        by_head = (*x.shape[:-1], self.heads)
        head = self.hidden_size // self.heads
        return (*by_head, head, head), (*by_head, head), by_head


def _read(memory: Array, normalizer: Array, stabilizer: Array, query: Array) -> Array:
    """`C' q / max(|n' . q|, exp(-m'))`."""
    wide = jnp.promote_types(memory.dtype, jnp.float32)
    memory, normalizer, stabilizer, query = (part.astype(wide) for part in (memory, normalizer, stabilizer, query))
    # Clipping does not matter: the bound is then below the rounding of n' . q, or so large that y vanishes.
    limit = largest_exponent(stabilizer)
    bound = jnp.exp(-jnp.clip(stabilizer, -limit, limit))
    length = jnp.abs((normalizer * query).sum(axis=-1))
    return (memory * query[..., None, :]).sum(axis=-1) / jnp.maximum(length, bound)[..., None]
