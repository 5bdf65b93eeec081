"""The minimal gated unit: one gate that forgets and, where asked for, resets."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.dense import DenseCell, project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class MGU(DenseCell):
    """The minimal gated unit: a GRU whose reset and update gate are one.

        f = sigmoid(x W_f + h U_f + b_f)
        n = tanh(x W_n + b_n + f * (h U_n + b_hn))     with reset_gate=True
        n = tanh(x W_n + b_n + h U_n)                  with reset_gate=False
        h' = (1 - f) * n + f * h
        y = h'

    Named "gates": what stands inside the sigmoid and, of the tanh, each matrix product.

    Parameters: `"kernel"` W `(D, 2H)`, `"recurrent_kernel"` U `(H, 2H)`, `"bias"` b `(2H,)`, and with
    `reset_gate=True` `"recurrent_bias"` b_hn `(H,)`; gate order f, n. Without `use_bias` no biases.
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
        reset_gate: whether f also decides how much of h the candidate n sees.
        forget_bias: added to b_f where parameters are made, as by Flax; nothing is added at run time. Without biases
            there is none.
        activation: of n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: of f.

    Raises:
        ValueError: if the size or a name cannot be, or what the cell is given does not fit its parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.MGU(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: Zhou et al. 2016, "Minimal Gated Unit for Recurrent Neural Networks", in the form of `flax.linen.MGUCell`:
    f follows the recurrent product, where the paper's `(f * h) U_n` precedes it, and f and 1 - f are exchanged.
    """

    blocks: ClassVar[int] = 2
    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("gates",)
    parameter_options: ClassVar[tuple[str, ...]] = ("reset_gate", "use_bias")

    _: KW_ONLY
    reset_gate: bool = True
    forget_bias: float = 1.0
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        key, recurrent_bias_key = jax.random.split(key)
        params = super()._make(key, input_size)
        if self.use_bias:
            params["bias"] = params["bias"].at[: self.hidden_size].add(self.forget_bias)
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
        from_input = with_bias(project(x, weights["kernel"]), weights)
        from_hidden = project(hidden, weights["recurrent_kernel"])
        products = self._reset if self.reset_gate else self._plain
        forget, candidate = products(weights, from_input, from_hidden, x.dtype)
        new_hidden = (1 - forget) * candidate + forget * carry[0]
        return (new_hidden.astype(carry[0].dtype),), new_hidden.astype(x.dtype)

    def _reset(self, weights: dict[str, Array], from_input: Array, from_hidden: Array, dtype: Any) -> tuple[Array, ...]:
        forget_input, candidate_input = jnp.split(from_input, 2, axis=-1)
        forget_hidden, candidate_hidden = jnp.split(from_hidden, 2, axis=-1)
        if self._has_recurrent_bias:
            candidate_hidden += weights["recurrent_bias"]
        products = (forget_input + forget_hidden, candidate_input, candidate_hidden)
        gate, candidate_input, candidate_hidden = name(jax.tree.map(lambda z: z.astype(dtype), products), "gates")
        forget = activate(self.gate_activation, gate)
        return forget, activate(self.activation, candidate_input + forget * candidate_hidden)

    def _plain(self, weights: dict[str, Array], from_input: Array, from_hidden: Array, dtype: Any) -> tuple[Array, ...]:
        gates = name((from_input + from_hidden).astype(dtype), "gates")
        gate, candidate = jnp.split(gates, 2, axis=-1)
        return activate(self.gate_activation, gate), activate(self.activation, candidate)

    @property
    def _has_recurrent_bias(self) -> bool:
        return self.reset_gate and self.use_bias

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | ({"recurrent_bias": (self.hidden_size,)} if self._has_recurrent_bias else {})
