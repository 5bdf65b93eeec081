"""The GRU, and the bases of cells like it."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.ranks import over_rows
from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import KernelCell
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class ResetGateCell(KernelCell):
    """The base of cells with the carry (h,) and a bias `"recurrent_bias"` of the candidate's recurrent product.

    Args:
        activation: the activation of the candidate.
        gate_activation: the activation of the gates.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    @property
    def _has_recurrent_bias(self) -> bool:
        return self.use_bias

    def _make(self, key: Array, input_size: int) -> Params:
        key, recurrent_bias_key = jax.random.split(key)
        params = super()._make(key, input_size)
        if self._has_recurrent_bias:
            params["recurrent_bias"] = self.bias_init(recurrent_bias_key, (self.hidden_size,), self.param_dtype)
        return params

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | ({"recurrent_bias": (self.hidden_size,)} if self._has_recurrent_bias else {})

    def _interpolate(self, gate: Array, candidate: Array, carry: Carry) -> tuple[Carry, Array]:
        """The new carry and y, `(1 - gate) * candidate + gate * h`."""
        hidden = (1 - gate) * candidate + gate * carry[0]
        return (hidden.astype(carry[0].dtype),), hidden


@dataclass(frozen=True, repr=False)
class GRUBase(ResetGateCell):
    """The base of GRUs, with matrix products or convolutions.

    Args:
        reset_after: whether the reset gate multiplies the recurrent product, or the hidden state before it.
    """

    blocks: ClassVar[int] = 3
    parameter_options: ClassVar[tuple[str, ...]] = ("reset_after", "use_bias")

    _: KW_ONLY
    reset_after: bool = True

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*new_batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden,), x = self._enter(params, carry, x, recurrent_mask)
        products = self._reset_after if self.reset_after else self._reset_before
        update_gate, candidate = products(weights, self._project_input(weights, x), hidden)
        carry, y = self._interpolate(update_gate, activate(self.activation, candidate), carry)
        return carry, y.astype(x.dtype)

    def _reset_after(self, weights: Params, from_input: Array, hidden: Array) -> tuple[Array, Array]:
        split = 2 * self.hidden_size
        from_hidden = self._project_hidden(weights["recurrent_kernel"], hidden)
        candidate_hidden = from_hidden[..., split:]
        if self._has_recurrent_bias:
            candidate_hidden += over_rows(weights["recurrent_bias"], candidate_hidden)
        products = (from_input[..., :split] + from_hidden[..., :split], from_input[..., split:], candidate_hidden)
        products = jax.tree.map(lambda z: z.astype(hidden.dtype), products)
        gates, candidate_input, candidate_hidden = name(products, "gates")
        reset_gate, update_gate = self._split_gates(gates)
        return update_gate, candidate_input + reset_gate * candidate_hidden

    def _reset_before(self, weights: Params, from_input: Array, hidden: Array) -> tuple[Array, Array]:
        split = 2 * self.hidden_size
        kernel = weights["recurrent_kernel"]
        from_hidden = self._project_hidden(kernel[..., :split], hidden)
        gates = name((from_input[..., :split] + from_hidden).astype(hidden.dtype), "gates")
        reset_gate, update_gate = self._split_gates(gates)
        from_reset = self._project_hidden(kernel[..., split:], reset_gate * hidden)
        return update_gate, name((from_input[..., split:] + from_reset).astype(hidden.dtype), "gates")

    def _split_gates(self, gates: Array) -> list[Array]:
        return jnp.split(activate(self.gate_activation, gates), 2, axis=-1)

    @property
    def _has_recurrent_bias(self) -> bool:
        return self.reset_after and self.use_bias


@dataclass(frozen=True, repr=False)
class GRU(GRUBase):
    """The gated recurrent unit.

        r = sigmoid(x W_r + h U_r + b_r)
        z = sigmoid(x W_z + h U_z + b_z)
        n = tanh(x W_n + b_n + r * (h U_n + b_hn))     with reset_after=True
        n = tanh(x W_n + b_n + (r * h) U_n)            with reset_after=False
        h' = (1 - z) * n + z * h
        y = h'

    Named "gates": the preactivations of the sigmoids, and both matrix products inside the tanh.

    Parameters: `"kernel"` W `(D, 3H)`, `"recurrent_kernel"` U `(H, 3H)`, `"bias"` b `(3H,)`, and with
    `reset_after=True` `"recurrent_bias"` b_hn `(H,)`; gate order r, z, n. Without `use_bias` no biases.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        reset_after: whether the reset gate multiplies the recurrent product (torch, cuDNN, Keras by default), or the
            hidden state before it (the paper, Haiku).
        activation: for n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: for r and z.

    Raises:
        ValueError: if the size or a name is invalid, or an argument of a step does not fit the parameters.
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

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
    Translation", equations 5 to 8, for `reset_after=False`; `torch.nn.GRU` for `reset_after=True`.
    """
