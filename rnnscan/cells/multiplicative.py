"""LSTM with multiplicative integration of input and hidden state."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.ranks import over_rows
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import project, with_bias
from rnnscan.cells.layer_norm import check_epsilon, layer_norm
from rnnscan.cells.memory_cell import MemoryCell
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class MILSTM(MemoryCell):
    """The LSTM with multiplicative integration.

        u = x W + b_x
        p = h U + b_h          (u and p are named "gates")
        [z_i z_f z_g z_o] = alpha * u * p + beta_1 * p + beta_2 * u + b
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    Parameters: `"kernel"` W `(D, 4H)`, `"recurrent_kernel"` U `(H, 4H)`, `"alpha"`, `"beta_1"`, `"beta_2"` `(4H,)`,
    initially one, `"bias"` b, `"input_bias"` b_x and `"recurrent_bias"` b_h `(4H,)`; gate order i, f, g, o.
    Without `use_bias` no biases.
    Carry: the tuple `(h, c)`, both `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        forget_bias: added by `init` to the forget gate's b, not at run time. Unused without biases.
        activation: for g and c', a name of `rnnscan.cells.activations` or a function.
        gate_activation: for i, f and o.

    Raises:
        ValueError: if the size or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.MILSTM(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden, state), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, state.shape, y.shape
        ((2, 4), (2, 4), (2, 4))

    Source: Wu et al. 2016, "On Multiplicative Integration with Recurrent Neural Networks", section 2, the general form
    in each gate. b_x and b_h are those of Caffe2's MILSTM.
    """

    def _make(self, key: Array, input_size: int) -> Params:
        key, *bias_keys = jax.random.split(key, 3)
        params = super()._make(key, input_size)
        columns = (4 * self.hidden_size,)
        for factor in ("alpha", "beta_1", "beta_2"):
            params[factor] = jnp.ones(columns, self.param_dtype)
        if self.use_bias:
            for bias, bias_key in zip(("input_bias", "recurrent_bias"), bias_keys, strict=True):
                params[bias] = self.bias_init(bias_key, columns, self.param_dtype)
        return self._add_forget_bias(params | self._make_norm())

    def _make_norm(self) -> Params:
        return {}

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden, _), x = self._enter(params, carry, x, recurrent_mask)
        from_input, from_hidden = project(x, weights["kernel"]), project(hidden, weights["recurrent_kernel"])
        if self.use_bias:
            from_input += over_rows(weights["input_bias"], from_input)
            from_hidden += over_rows(weights["recurrent_bias"], from_hidden)
        # The gradient of their product needs both, so both are named instead of the preactivation.
        from_input, from_hidden = name((from_input.astype(x.dtype), from_hidden.astype(x.dtype)), "gates")
        alpha, beta_1, beta_2 = (over_rows(weights[of], from_input) for of in ("alpha", "beta_1", "beta_2"))
        integrated = alpha * from_input * from_hidden
        integrated += beta_1 * from_hidden + beta_2 * from_input
        return self._update(self._normalize(weights, with_bias(integrated, weights)), carry)

    def _normalize(self, weights: Params, preactivation: Array) -> Array:
        """Normalize the preactivation of the gates. Here: return it unchanged."""
        return preactivation

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        added = ("alpha", "beta_1", "beta_2") + (("input_bias", "recurrent_bias") if self.use_bias else ())
        shapes: dict[str, tuple[Any, ...]] = dict.fromkeys(added, (4 * self.hidden_size,))
        return super()._shapes() | shapes


@dataclass(frozen=True, repr=False)
class LayerNormMILSTM(MILSTM):
    """The LSTM with multiplicative integration and layer normalization.

        u = x W + b_x
        p = h U + b_h          (u and p are named "gates")
        z = alpha * u * p + beta_1 * p + beta_2 * u + b
        [z_i z_f z_g z_o] = norm_scale * (z - mean(z)) / sqrt(var(z) + epsilon) + norm_bias
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    with mean and variance over all 4H units of z together.

    Parameters: those of `MILSTM`, and `"norm_scale"` and `"norm_bias"` `(4H,)`, also without `use_bias`.
    Carry: the tuple `(h, c)`, both `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of b, b_x and b_h.
        use_bias: whether there are b, b_x and b_h.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        forget_bias: added by `init` to the forget gate's norm_bias, not at run time.
        activation: for g and c', a name of `rnnscan.cells.activations` or a function.
        gate_activation: for i, f and o.
        epsilon: added to the variance. Caffe2's is 1e-4.

    Raises:
        ValueError: if a size, a name or epsilon is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.LayerNormMILSTM(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden, state), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, state.shape, y.shape
        ((2, 4), (2, 4), (2, 4))

    Source: Caffe2's LayerNormMILSTM: `MILSTM` with the norm of `LayerNormLSTM`.
    """

    _: KW_ONLY
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("LayerNormMILSTM", self.epsilon)

    def _make_norm(self) -> Params:
        columns = (4 * self.hidden_size,)
        return {"norm_scale": jnp.ones(columns, self.param_dtype), "norm_bias": jnp.zeros(columns, self.param_dtype)}

    def _normalize(self, weights: Params, preactivation: Array) -> Array:
        normalized = layer_norm(preactivation, weights["norm_scale"], epsilon=self.epsilon)
        normalized += over_rows(weights["norm_bias"], normalized)
        return normalized.astype(preactivation.dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        columns = (4 * self.hidden_size,)
        return super()._shapes() | {"norm_scale": columns, "norm_bias": columns}
