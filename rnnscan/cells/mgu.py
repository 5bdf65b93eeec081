"""The minimal gated unit: a GRU with one gate."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.ranks import over_rows
from rnnscan.cells.activations import activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.gru import ResetGateCell
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class MGU(ResetGateCell):
    """The minimal gated unit: a GRU with one gate f for both reset and update.

        f = sigmoid(x W_f + h U_f + b_f)
        n = tanh(x W_n + b_n + f * (h U_n + b_hn))     with reset_gate=True
        n = tanh(x W_n + b_n + h U_n)                  with reset_gate=False
        h' = (1 - f) * n + f * h
        y = h'

    Named "gates": the preactivation of the sigmoid, and both matrix products inside the tanh.

    Parameters: `"kernel"` W `(D, 2H)`, `"recurrent_kernel"` U `(H, 2H)`, `"bias"` b `(2H,)`, and with
    `reset_gate=True` `"recurrent_bias"` b_hn `(H,)`; gate order f, n. Without `use_bias` no biases.
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
        reset_gate: whether f also multiplies the recurrent product of n.
        forget_bias: added by `init` to b_f, as in Flax, not at run time. Unused without biases.
        activation: for n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: for f.

    Raises:
        ValueError: if the size or a name is invalid, or an argument of a step does not fit the parameters.
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

    Source: Zhou et al. 2016, "Minimal Gated Unit for Recurrent Neural Networks", in the form of `flax.linen.MGUCell`.
    The paper has `(f * h) U_n` instead of `f * (h U_n)`, and exchanges f and 1 - f in h'.
    """

    blocks: ClassVar[int] = 2
    parameter_options: ClassVar[tuple[str, ...]] = ("reset_gate", "use_bias")

    _: KW_ONLY
    reset_gate: bool = True
    forget_bias: float = 1.0

    def _make(self, key: Array, input_size: int) -> Params:
        params = super()._make(key, input_size)
        if self.use_bias:
            params["bias"] = params["bias"].at[: self.hidden_size].add(self.forget_bias)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden,), x = self._enter(params, carry, x, recurrent_mask)
        from_input = self._project_input(weights, x)
        from_hidden = self._project_hidden(weights["recurrent_kernel"], hidden)
        products = self._reset if self.reset_gate else self._plain
        forget, candidate = products(weights, from_input, from_hidden, x.dtype)
        carry, y = self._interpolate(forget, candidate, carry)
        return carry, y.astype(x.dtype)

    def _reset(self, weights: Params, from_input: Array, from_hidden: Array, dtype: Any) -> tuple[Array, ...]:
        forget_input, candidate_input = jnp.split(from_input, 2, axis=-1)
        forget_hidden, candidate_hidden = jnp.split(from_hidden, 2, axis=-1)
        if self._has_recurrent_bias:
            candidate_hidden += over_rows(weights["recurrent_bias"], candidate_hidden)
        products = (forget_input + forget_hidden, candidate_input, candidate_hidden)
        gate, candidate_input, candidate_hidden = name(jax.tree.map(lambda z: z.astype(dtype), products), "gates")
        forget = activate(self.gate_activation, gate)
        return forget, activate(self.activation, candidate_input + forget * candidate_hidden)

    def _plain(self, weights: Params, from_input: Array, from_hidden: Array, dtype: Any) -> tuple[Array, ...]:
        gates = name((from_input + from_hidden).astype(dtype), "gates")
        gate, candidate = jnp.split(gates, 2, axis=-1)
        return activate(self.gate_activation, gate), activate(self.activation, candidate)

    @property
    def _has_recurrent_bias(self) -> bool:
        return self.reset_gate and self.use_bias
