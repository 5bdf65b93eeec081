"""LSTM and GRU with layer normalization."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.messages import listing
from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks
from rnnscan.cells.activations import activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import project, with_bias
from rnnscan.cells.gru import ResetGateCell
from rnnscan.cells.memory_cell import MemoryCell
from rnnscan.naming import name


Normalized = Literal["preactivation", "products"]


def layer_norm(
    z: Float[Array, "*batch units"], scale: Float[Array, " units"], *, epsilon: float
) -> Float[Array, "*batch units"]:
    """Normalize the last axis.

        scale * (z - mean(z)) / sqrt(mean((z - mean(z))^2) + epsilon)

    Args:
        z: the values. The variance is that of the differences to the mean, since mean(z^2) - mean(z)^2 is inaccurate
            for a large mean.
        scale: the factor of each unit.
        epsilon: added to the variance.

    Returns:
        An array of the same shape, in at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells.layer_norm import layer_norm
        >>> [round(float(y), 3) for y in layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), epsilon=1e-5)]
        [-1.0, 1.0]

    Source: Ba et al. 2016, "Layer Normalization", equations 3 and 4, with epsilon as in `torch.nn.LayerNorm`.
    """
    wide = z.astype(at_least_float32(z.dtype))
    centered = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)
    return over_rows(scale, centered) * (centered * lax.rsqrt(variance + epsilon))


def check_epsilon(cell: str, epsilon: float) -> None:
    """Check that epsilon is positive, so that equal units are not divided by zero."""
    if not epsilon > 0:
        raise ValueError(f"{cell}: `epsilon` must be a number above 0; got {epsilon!r}.")


@dataclass(frozen=True, repr=False)
class LayerNormLSTM(MemoryCell):
    """The LSTM with layer normalization of the gates, or of each matrix product and of the cell state.

        [z_i z_f z_g z_o] = norm_scale * LN(x W + h U + b) + norm_bias
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    and with normalize="products"

        [z_i z_f z_g z_o] = input_norm_scale * LN(x W) + recurrent_norm_scale * LN(h U) + b
        h' = o * tanh(cell_norm_scale * LN(c') + cell_norm_bias)

    where LN(z) = (z - mean(z)) / sqrt(var(z) + epsilon), over all 4H units of the gates together, or all H of c'.

    Named "gates": the arguments of the norms of the gates, which are the sum or the two products.

    Parameters: `"kernel"` W `(D, 4H)`, `"recurrent_kernel"` U `(H, 4H)`, `"bias"` b `(4H,)`; gate order i, f, g, o.
    With normalize="preactivation", `"norm_scale"` and `"norm_bias"` `(4H,)`. With normalize="products",
    `"input_norm_scale"` and `"recurrent_norm_scale"` `(4H,)`, `"cell_norm_scale"` and `"cell_norm_bias"` `(H,)`.
    Carry: the tuple `(h, c)`, both `(N, H)`, with c not normalized.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of b. Scales are initially one, and biases of norms zero.
        use_bias: whether there is b.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        normalize: "preactivation" for the norm of the sum, or "products" for norms of each product and of c', as in the
            paper.
        epsilon: added to the variance. Caffe2's is 1e-4.
        forget_bias: added by `init` to the forget gate's bias after the norm, not at run time. That bias is norm_bias,
            or b with normalize="products".
        activation: for g and the cell state in h', a name of `rnnscan.cells.activations` or a function.
        gate_activation: for i, f and o.

    Raises:
        ValueError: if a size, a name or epsilon is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.LayerNormLSTM(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden, state), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, state.shape, y.shape
        ((2, 4), (2, 4), (2, 4))

    Source: Ba et al. 2016, "Layer Normalization", equations 20 to 22, for "products"; Caffe2's LayerNormLSTM for
    "preactivation". Biases that they add to each other are one bias here.
    """

    _: KW_ONLY
    normalize: Normalized = "preactivation"
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("LayerNormLSTM", self.epsilon)
        if self.normalize not in get_args(Normalized):
            raise ValueError(
                f"LayerNormLSTM: `normalize` must be one of {listing(get_args(Normalized))}; got {self.normalize!r}."
            )

    def _make(self, key: Array, input_size: int) -> Params:
        params = super()._make(key, input_size)
        for norm, shape in self._norm_shapes().items():
            start = jnp.zeros if norm.endswith("bias") else jnp.ones
            params[norm] = start(shape, self.param_dtype)
        return self._add_forget_bias(params)

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden, _), x = self._enter(params, carry, x, recurrent_mask)
        products = project(x, weights["kernel"]), project(hidden, weights["recurrent_kernel"])
        if self.normalize == "preactivation":
            return self._update(self._preactivation(weights, *products, x.dtype), carry)
        gates = self._products(weights, *products, x.dtype)
        return self._update(gates, carry, lambda state: self._normalize_state(weights, state))

    def _normalize_state(self, weights: Params, state: Array) -> Array:
        normalized = layer_norm(state, weights["cell_norm_scale"], epsilon=self.epsilon)
        return normalized + over_rows(weights["cell_norm_bias"], normalized)

    def _preactivation(self, weights: Params, from_input: Array, from_hidden: Array, dtype: Any) -> Array:
        gates = name(with_bias(from_input + from_hidden, weights).astype(dtype), "gates")
        normalized = layer_norm(gates, weights["norm_scale"], epsilon=self.epsilon)
        return (normalized + over_rows(weights["norm_bias"], normalized)).astype(dtype)

    def _products(self, weights: Params, from_input: Array, from_hidden: Array, dtype: Any) -> Array:
        from_input, from_hidden = name((from_input.astype(dtype), from_hidden.astype(dtype)), "gates")
        normalized = layer_norm(from_input, weights["input_norm_scale"], epsilon=self.epsilon)
        normalized += layer_norm(from_hidden, weights["recurrent_norm_scale"], epsilon=self.epsilon)
        return with_bias(normalized, weights).astype(dtype)

    def _norm_shapes(self) -> dict[str, tuple[Any, ...]]:
        units, columns = (self.hidden_size,), (4 * self.hidden_size,)
        if self.normalize == "preactivation":
            return {"norm_scale": columns, "norm_bias": columns}
        of_products = {"input_norm_scale": columns, "recurrent_norm_scale": columns}
        return of_products | {"cell_norm_scale": units, "cell_norm_bias": units}

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | self._norm_shapes()

    def _likely_cause(self, params: Any) -> str:
        other: Normalized = "products" if self.normalize == "preactivation" else "preactivation"
        if checks.fitting_input_size(replace(self, normalize=other)._shapes(), params) is not None:
            return f"They were made with normalize={other!r}, and the cell has {self.normalize!r}."
        return super()._likely_cause(params)


@dataclass(frozen=True, repr=False)
class LayerNormGRU(ResetGateCell):
    """The GRU with layer normalization of each matrix product.

        [z_r z_z] = input_norm_scale_rz * LN(x W_rz) + recurrent_norm_scale_rz * LN(h U_rz) + b_rz
        r = sigmoid(z_r)    z = sigmoid(z_z)
        n = tanh(input_norm_scale_n * LN(x W_n) + b_n + r * (recurrent_norm_scale_n * LN(h U_n) + b_hn))
        h' = (1 - z) * n + z * h
        y = h'

    where LN(z) = (z - mean(z)) / sqrt(var(z) + epsilon), over the 2H units of r and z together, and over the H of n.
    The reset gate multiplies the recurrent product, as in `GRU` with `reset_after=True`.

    Named "gates": the two products before normalization.

    Parameters: `"kernel"` W `(D, 3H)`, `"recurrent_kernel"` U `(H, 3H)`, `"input_norm_scale"` and
    `"recurrent_norm_scale"` `(3H,)`, `"bias"` b `(3H,)`, `"recurrent_bias"` b_hn `(H,)`; gate order r, z, n. Without
    `use_bias` no biases.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of the biases. Scales are initially one.
        use_bias: whether there are biases.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        epsilon: added to the variance.
        activation: for n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: for r and z.

    Raises:
        ValueError: if a size, a name or epsilon is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.LayerNormGRU(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: Ba et al. 2016, "Layer Normalization", the GRU of the supplementary material, with the sum of its two
    biases of r and z as one bias, and with z and 1 - z exchanged.
    """

    blocks: ClassVar[int] = 3

    _: KW_ONLY
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("LayerNormGRU", self.epsilon)

    def _make(self, key: Array, input_size: int) -> Params:
        scales = {scale: jnp.ones(shape, self.param_dtype) for scale, shape in self._scale_shapes().items()}
        return super()._make(key, input_size) | scales

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden,), x = self._enter(params, carry, x, recurrent_mask)
        products = project(x, weights["kernel"]), project(hidden, weights["recurrent_kernel"])
        from_input, from_hidden = name(jax.tree.map(lambda z: z.astype(x.dtype), products), "gates")
        from_input = with_bias(self._normalize(from_input, weights["input_norm_scale"]), weights)
        from_hidden = self._normalize(from_hidden, weights["recurrent_norm_scale"])

        split = 2 * self.hidden_size
        candidate_hidden = from_hidden[..., split:]
        if self.use_bias:
            candidate_hidden += over_rows(weights["recurrent_bias"], candidate_hidden)
        gates = (from_input[..., :split] + from_hidden[..., :split]).astype(x.dtype)
        reset_gate, update_gate = jnp.split(activate(self.gate_activation, gates), 2, axis=-1)
        candidate = (from_input[..., split:] + reset_gate * candidate_hidden).astype(x.dtype)
        carry, y = self._interpolate(update_gate, activate(self.activation, candidate), carry)
        return carry, y.astype(x.dtype)

    def _normalize(self, products: Array, scale: Array) -> Array:
        """Normalize the 2H units of the gates, and separately the H units of the candidate."""
        split = 2 * self.hidden_size
        gates = layer_norm(products[..., :split], scale[:split], epsilon=self.epsilon)
        candidate = layer_norm(products[..., split:], scale[split:], epsilon=self.epsilon)
        return jnp.concatenate([gates, candidate], axis=-1)

    def _scale_shapes(self) -> dict[str, tuple[Any, ...]]:
        return dict.fromkeys(("input_norm_scale", "recurrent_norm_scale"), (3 * self.hidden_size,))

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | self._scale_shapes()
