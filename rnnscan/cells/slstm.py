"""The sLSTM of xLSTM: an LSTM with exponential gates, a normalizer and a stabilizer."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells import initializers
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import KernelCell, project, with_bias
from rnnscan.cells.exponential_gates import check_forget_gate, largest_exponent, log_of_forget_gate
from rnnscan.cells.heads import check_heads, initialize_heads, project_heads
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class SLSTM(KernelCell):
    """The scalar LSTM with exponential gates (sLSTM).

        [a_i a_f a_z a_o] = x W + h R + b          (named "gates")
        log i = a_i    log f = log sigmoid(a_f)    z = tanh(a_z)    o = sigmoid(a_o)
        m' = max(log f + m, log i)
        c' = exp(log f + m - m') * c + exp(log i - m') * z
        n' = exp(log f + m - m') * n + exp(log i - m')
        h' = o * c' / n'
        y = h'

    With `forget_gate="exp"`, log f = a_f.

    c and n are stored divided by exp(m), which does not change h: c exp(m) and n exp(m) are the states of an LSTM with
    i = exp(a_i) and without m. The initial state is zero. If n = 0, nothing has been written yet, so m is ignored and
    m' = log i. So n' is at least 1 after any write, and h' is never 0 / 0.

    R mixes the units of a head. Where each head is one unit (`heads=hidden_size`) the loop is elementwise, and
    `scan(parallel=rs.Newton(damping=0.01))` solves it; without damping the iterations overflow. Larger heads need
    `jacobian="diagonal"`, and so many iterations that the loop is faster.

    Parameters: `"kernel"` W `(D, 4H)`, `"recurrent_kernel"` R `(heads, H / heads, 4 H / heads)`, block-diagonal: one
    block `(H / heads, H / heads)` for each head and gate; `"bias"` b `(4H,)`; order i, f, z, o.
    Carry: the tuple `(h, c, n, m)`, each `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each block of the recurrent kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. c, n and m need float32 in a 16-bit computation.
        heads: the number of blocks of h. Units of a block read only that block.
        forget_gate: "sigmoid" or "exp".
        forget_bias: added by `init` to the forget gates' bias, evenly spaced over each head's units from the first
            number to the second. Unused without a bias.

    Raises:
        ValueError: if a size or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.SLSTM(4, heads=2)
        >>> x = jnp.ones((2, 3))
        >>> (hidden, *_), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", equations 8 to 17. forget_bias and m' in the
    initial state are those of the authors' code.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("hidden", "cell", "normalizer", "stabilizer")
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    heads: int = 1
    forget_gate: str = "sigmoid"
    forget_bias: tuple[float, float] = (3.0, 6.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads("SLSTM", self.hidden_size, self.heads)
        check_forget_gate("SLSTM", self.forget_gate, self.forget_bias)

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, recurrent_key, bias_key = jax.random.split(key, 3)
        units, dtype = self.hidden_size, self.param_dtype
        params = {
            "kernel": initializers.by_block(self.kernel_init, kernel_key, input_size, units, 4, dtype),
            "recurrent_kernel": initialize_heads(self.recurrent_init, recurrent_key, units, self.heads, 4, dtype),
        }
        if self.use_bias:
            spaced = jnp.tile(jnp.linspace(*self.forget_bias, units // self.heads, dtype=dtype), self.heads)
            params["bias"] = self.bias_init(bias_key, (4 * units,), dtype).at[units : 2 * units].add(spaced)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden, *_), x = self._enter(params, carry, x, recurrent_mask)
        products = project(x, weights["kernel"]) + project_heads(hidden, weights["recurrent_kernel"])
        gates = name(with_bias(products, weights).astype(x.dtype), "gates")
        # The states accumulate over the whole sequence, so they are updated in their own dtypes.
        _, state, normalizer, stabilizer = carry
        log_input, forget, candidate, output = jnp.split(gates, 4, axis=-1)
        log_forget = log_of_forget_gate(self.forget_gate, forget.astype(stabilizer.dtype))
        scaled_forget = log_forget + stabilizer
        new_stabilizer = jnp.where(normalizer == 0, log_input, jnp.maximum(scaled_forget, log_input))
        new_stabilizer = new_stabilizer.astype(stabilizer.dtype)
        # The exponent is above 0 only in the initial state, where keep affects only gradients and must be finite.
        keep = jnp.exp(jnp.minimum(scaled_forget - new_stabilizer, largest_exponent(stabilizer)))
        write = jnp.exp(log_input - new_stabilizer)
        new_state = (keep * state + write * jnp.tanh(candidate)).astype(state.dtype)
        new_normalizer = (keep * normalizer + write).astype(normalizer.dtype)
        new_hidden = jax.nn.sigmoid(output) * (new_state / new_normalizer)
        new_carry = (new_hidden.astype(carry[0].dtype), new_state, new_normalizer, new_stabilizer)
        return new_carry, new_hidden.astype(x.dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        units, head = self.hidden_size, self.hidden_size // self.heads
        shapes: dict[str, tuple[Any, ...]] = {
            "kernel": ("D", 4 * units),
            "recurrent_kernel": (self.heads, head, 4 * head),
        }
        return shapes | ({"bias": (4 * units,)} if self.use_bias else {})
