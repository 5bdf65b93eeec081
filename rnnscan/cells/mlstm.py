"""The mLSTM of xLSTM: a matrix memory with exponential gates that read only the input."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan.cells import initializers
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, project
from rnnscan.cells.exponential_gates import check_forget_gate, largest_exponent, log_of_forget_gate
from rnnscan.cells.heads import check_heads, split_heads
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
        y = o * C' q / (max(|n' . q|, exp(-m')) + epsilon)

    With `projections=False`, x is [q k v] `(N, 3H)`, k is divided by sqrt(d) as it comes, log i and log f read all of
    x, and o = 1. q and k may then have an input of their own, such as the convolution of xLSTM's blocks, their kernels
    may be block-diagonal, and the bias of k is scaled with k. So the cell is the `mLSTMCell` of public code.

    With `forget_gate="exp"`, log f = x w_f + c_f. Named "projected": q, k, v and o, unless x has them. Named "gates":
    log i and log f. All are named before their activations.

    C and n are stored divided by exp(m), which does not change y: without m, the cell would have the states C exp(m)
    and n exp(m), and the bound 1 instead of exp(-m'). The initial state is zero for any m. Given m, C and n are
    elementwise linear, and no matrix product depends on the carry.

    Parameters: with projections `"kernel"` W `(D, 4H)` and `"bias"` b `(4H,)`, order q, k, v, o, each one head after
    the other; `"gate_kernel"` w `(D, 2 heads)` and `"gate_bias"` c `(2 heads,)`, order i, f.
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
        projections: whether the cell computes q, k, v and o. False: x is [q k v], and the output gate is left out.
        epsilon: added to the denominator of y. Public code has 1e-6.

    Raises:
        ValueError: if a size, a number or a name is invalid, or an argument of a step does not fit the parameters.
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
    17. forget_bias and the initial gate kernel of zeros are those of the authors' code. `projections=False` and epsilon
    are those of `mLSTMCell` in `xlstm/blocks/mlstm/cell.py` of `NX-AI/xlstm`, and of
    `xlstm_jax/models/xlstm_clean/blocks/mlstm/cell.py` of `NX-AI/xlstm-jax`, before their `outnorm`: `igate` and
    `fgate` side by side are w and c.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("memory", "normalizer", "stabilizer")
    output_part: ClassVar[int | None] = None
    parameter_options: ClassVar[tuple[str, ...]] = ("use_bias", "projections")

    _: KW_ONLY
    gate_kernel_init: Initializer = initializers.zeros
    heads: int = 1
    forget_gate: str = "sigmoid"
    forget_bias: tuple[float, float] = (3.0, 6.0)
    projections: bool = True
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads("MLSTM", self.hidden_size, self.heads)
        check_forget_gate("MLSTM", self.forget_gate, self.forget_bias)
        if not self.epsilon >= 0:
            raise ValueError(f"MLSTM: `epsilon` must be a number of at least 0; got {self.epsilon!r}.")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a step's values."""
        return ("projected", "gates") if self.projections else ("gates",)

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, gate_kernel_key, bias_key, gate_bias_key = jax.random.split(key, 4)
        units, heads, dtype = self.hidden_size, self.heads, self.param_dtype
        gate_kernel = initializers.by_block(self.gate_kernel_init, gate_kernel_key, input_size, heads, 2, dtype)
        params = {"gate_kernel": gate_kernel}
        if self.projections:
            params["kernel"] = initializers.by_block(self.kernel_init, kernel_key, input_size, units, 4, dtype)
        if self.projections and self.use_bias:
            params["bias"] = self.bias_init(bias_key, (4 * units,), dtype)
        if self.use_bias:
            spaced = jnp.linspace(*self.forget_bias, heads, dtype=dtype)
            params["gate_bias"] = self.bias_init(gate_bias_key, (2 * heads,), dtype).at[heads:].add(spaced)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        query, key, value, output = (self._projected if self.projections else self._unprojected)(weights, x)
        # The states accumulate over the whole sequence, so they are updated in their own dtypes.
        memory, normalizer, stabilizer = carry
        new_stabilizer, keep, write = self._gates(weights, x, stabilizer)
        written = (write * value)[..., :, None] * key[..., None, :]
        new_memory = (keep[..., None] * memory + written).astype(memory.dtype)
        new_normalizer = (keep * normalizer + write * key).astype(normalizer.dtype)
        read = _read(new_memory, new_normalizer, new_stabilizer, query, self.epsilon)
        y = read.reshape(*x.shape[:-1], self.hidden_size)
        if output is not None:
            y = jax.nn.sigmoid(output) * y
        return (new_memory, new_normalizer, new_stabilizer), y.astype(x.dtype)

    def _unprojected(self, weights: Params, x: Array) -> tuple[Array, Array, Array, None]:
        """Take q, k and v by head from x, without o."""
        query, key, value = (split_heads(part, self.heads) for part in jnp.split(x, 3, axis=-1))
        return query, key / key.shape[-1] ** 0.5, value, None

    def _projected(self, weights: Params, x: Array) -> tuple[Array, Array, Array, Array]:
        """Compute q, k and v by head, and o before the sigmoid."""
        query, key, value, output = jnp.split(project(x, weights["kernel"]), 4, axis=-1)
        key /= (self.hidden_size // self.heads) ** 0.5
        parts = [query, key, value, output]
        if self.use_bias:
            parts = [
                part + over_rows(bias, part) for part, bias in zip(parts, jnp.split(weights["bias"], 4), strict=True)
            ]
        query, key, value, output = name([part.astype(x.dtype) for part in parts], "projected")
        query, key, value = (split_heads(part, self.heads) for part in (query, key, value))
        return query, key, value, output

    def _gates(self, weights: Params, x: Array, stabilizer: Array) -> tuple[Array, Array, Array]:
        """Compute m', and the factors `(N, heads, 1)` of the old state and of the update."""
        products = project(x, weights["gate_kernel"])
        if self.use_bias:
            products += over_rows(weights["gate_bias"], products)
        gates = name(products.astype(x.dtype), "gates")
        log_input, forget = jnp.split(gates.astype(stabilizer.dtype), 2, axis=-1)
        scaled_forget = log_of_forget_gate(self.forget_gate, forget) + stabilizer
        new_stabilizer = jnp.maximum(scaled_forget, log_input)
        keep, write = (jnp.exp(scaled - new_stabilizer)[..., None] for scaled in (scaled_forget, log_input))
        return new_stabilizer, keep, write

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        units, heads = self.hidden_size, self.heads
        projections: dict[str, tuple[Any, ...]] = {"kernel": ("D", 4 * units), "bias": (4 * units,)}
        gates: dict[str, tuple[Any, ...]] = {"gate_kernel": ("D", 2 * heads), "gate_bias": (2 * heads,)}
        shapes = (projections if self.projections else {}) | gates
        return {name: shape for name, shape in shapes.items() if self.use_bias or not name.endswith("bias")}

    def _check_features(self, input_size: int) -> None:
        if not self.projections and input_size != 3 * self.hidden_size:
            raise ValueError(
                f"MLSTM: the input must be q, k and v side by side, {3 * self.hidden_size} features; got {input_size}. "
                "Set projections=True for a cell that computes them."
            )

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        by_head = (*x.shape[:-1], self.heads)
        head = self.hidden_size // self.heads
        return (*by_head, head, head), (*by_head, head), by_head


def _read(memory: Array, normalizer: Array, stabilizer: Array, query: Array, epsilon: float) -> Array:
    """`C' q / (max(|n' . q|, exp(-m')) + epsilon)`."""
    wide = at_least_float32(memory.dtype)
    memory, normalizer, stabilizer, query = (part.astype(wide) for part in (memory, normalizer, stabilizer, query))
    # Clipping does not matter: the bound is then below the rounding of n' . q, or so large that y vanishes.
    limit = largest_exponent(stabilizer)
    bound = jnp.exp(-jnp.clip(stabilizer, -limit, limit))
    length = jnp.abs((normalizer * query).sum(axis=-1))
    denominator = jnp.maximum(length, bound)
    if epsilon:
        denominator += epsilon
    return (memory * query[..., None, :]).sum(axis=-1) / denominator[..., None]
