"""The gated recurrent unit, with the reset gate after or before the recurrent product."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.dense import DenseCell, project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class GRU(DenseCell):
    """The gated recurrent unit.

        r = sigmoid(x W_r + h U_r + b_r)
        z = sigmoid(x W_z + h U_z + b_z)
        n = tanh(x W_n + b_n + r * (h U_n + b_hn))     with reset_after=True
        n = tanh(x W_n + b_n + (r * h) U_n)            with reset_after=False
        h' = (1 - z) * n + z * h
        y = h'

    Named "gates": what stands inside the sigmoids and, of the tanh, each matrix product.

    Parameters: `"kernel"` W `(D, 3H)`, `"recurrent_kernel"` U `(H, 3H)`, `"bias"` b `(3H,)`, and with
    `reset_after=True` `"recurrent_bias"` b_hn `(H,)`; gate order r, z, n. Without `use_bias` no biases.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's.
        reset_after: whether the reset gate follows the recurrent product (torch, Keras' default, cuDNN), or
            precedes it (the paper, Haiku).
        activation: of n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: of r and z.

    Raises:
        ValueError: if the size or a name cannot be, or what the cell is given does not fit its parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.GRU(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", equations 5 to 8, with z and
    1 - z exchanged as in `torch.nn.GRU`.
    """

    blocks: ClassVar[int] = 3
    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("gates",)

    parameter_options: ClassVar[tuple[str, ...]] = ("reset_after", "use_bias")

    _: KW_ONLY
    reset_after: bool = True
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        key, recurrent_bias_key = jax.random.split(key)
        params = super()._make(key, input_size)
        if self._has_recurrent_bias:
            params["recurrent_bias"] = self.bias_init(recurrent_bias_key, (self.hidden_size,), self.param_dtype)
        return params

    def __call__(
        self,
        params: dict[str, Array],
        carry: tuple[Array, ...],
        x: Num[Array, "*batch features"],
        *,
        recurrent_mask: Array | None = None,
    ) -> tuple[tuple[Array, ...], Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden,), x = self._enter(params, carry, x, recurrent_mask)
        products = self._reset_after if self.reset_after else self._reset_before
        update_gate, candidate = products(weights, hidden, x)
        new_hidden = (1 - update_gate) * candidate + update_gate * carry[0]
        return (new_hidden.astype(carry[0].dtype),), new_hidden.astype(x.dtype)

    def _reset_after(self, weights: dict[str, Array], hidden: Array, x: Array) -> tuple[Array, Array]:
        split = 2 * self.hidden_size
        from_input = with_bias(project(x, weights["kernel"]), weights)
        from_hidden = project(hidden, weights["recurrent_kernel"])
        candidate_hidden = from_hidden[..., split:]
        if self._has_recurrent_bias:
            candidate_hidden += weights["recurrent_bias"]
        products = (from_input[..., :split] + from_hidden[..., :split], from_input[..., split:], candidate_hidden)
        gates, candidate_input, candidate_hidden = name(jax.tree.map(lambda z: z.astype(x.dtype), products), "gates")
        reset_gate, update_gate = self._gates(gates)
        return update_gate, activate(self.activation, candidate_input + reset_gate * candidate_hidden)

    def _reset_before(self, weights: dict[str, Array], hidden: Array, x: Array) -> tuple[Array, Array]:
        split = 2 * self.hidden_size
        from_input = with_bias(project(x, weights["kernel"]), weights)
        from_hidden = project(hidden, weights["recurrent_kernel"][:, :split])
        gates = name((from_input[..., :split] + from_hidden).astype(x.dtype), "gates")
        reset_gate, update_gate = self._gates(gates)
        from_reset = project(reset_gate * hidden, weights["recurrent_kernel"][:, split:])
        candidate = name((from_input[..., split:] + from_reset).astype(x.dtype), "gates")
        return update_gate, activate(self.activation, candidate)

    def _gates(self, gates: Array) -> list[Array]:
        return jnp.split(activate(self.gate_activation, gates), 2, axis=-1)

    @property
    def _has_recurrent_bias(self) -> bool:
        return self.reset_after and self.use_bias

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | ({"recurrent_bias": (self.hidden_size,)} if self._has_recurrent_bias else {})
