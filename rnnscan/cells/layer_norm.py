"""Recurrent cells with layer normalization."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from rnnscan._messages import listing
from rnnscan.cells import checks
from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.dense import DenseCell, project, with_bias
from rnnscan.cells.memory_cell import update_state
from rnnscan.naming import name


Normalized = Literal["preactivation", "products"]


def layer_norm(
    z: Float[Array, "*batch units"], scale: Float[Array, " units"], *, epsilon: float
) -> Float[Array, "*batch units"]:
    """Normalize the last axis.

        scale * (z - mean(z)) / sqrt(mean((z - mean(z))^2) + epsilon)

    Args:
        z: what is normalized. Its mean and variance are taken in at least float32, and the variance from the
            differences to the mean: mean(z^2) - mean(z)^2 loses its digits where the mean is large.
        scale: of each unit.
        epsilon: added to the variance.

    Returns:
        The like of z, in at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells.layer_norm import layer_norm
        >>> [round(float(y), 3) for y in layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), epsilon=1e-5)]
        [-1.0, 1.0]

    Source: Ba et al. 2016, "Layer Normalization", equations 3 and 4, with epsilon as in `torch.nn.LayerNorm`.
    """
    wide = z.astype(jnp.promote_types(z.dtype, jnp.float32))
    centered = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)
    return scale * (centered * lax.rsqrt(variance + epsilon))


def check_epsilon(cell: str, epsilon: float) -> None:
    """Refuse an epsilon under which units that are all equal would be divided by zero."""
    if not epsilon > 0:
        raise ValueError(f"{cell}: `epsilon` must be a number above 0; got {epsilon!r}.")


@dataclass(frozen=True, repr=False)
class LayerNormLSTM(DenseCell):
    """Long short-term memory with layer normalization of its gates, or of each matrix product and of its state.

        [z_i z_f z_g z_o] = norm_scale * LN(x W + h U + b) + norm_bias
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    and with normalize="products"

        [z_i z_f z_g z_o] = input_norm_scale * LN(x W) + recurrent_norm_scale * LN(h U) + b
        h' = o * tanh(cell_norm_scale * LN(c') + cell_norm_bias)

    where LN(z) = (z - mean(z)) / sqrt(var(z) + epsilon), over all 4H units of the gates at once, or all H of c'.

    Named "gates": what the gates are made of before it is normalized, the sum or each of the two products.

    Parameters: `"kernel"` W `(D, 4H)`, `"recurrent_kernel"` U `(H, 4H)`, `"bias"` b `(4H,)`; gate order i, f, g, o.
    With normalize="preactivation" `"norm_scale"` and `"norm_bias"` `(4H,)`; with normalize="products"
    `"input_norm_scale"` and `"recurrent_norm_scale"` `(4H,)`, `"cell_norm_scale"` and `"cell_norm_bias"` `(H,)`.
    Carry: the tuple `(h, c)`, both `(N, H)`; c' is handed on as it was before its norm.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of b. Scales start as ones, and the biases of norms as zeros.
        use_bias: whether there is b.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's.
        normalize: what is normalized: the sum "preactivation", or the "products" and c', as in the paper.
        epsilon: added to the variance, inside the root. Caffe2's is 1e-4.
        forget_bias: added, where parameters are made, to the bias that the forget gate has after the norm: norm_bias,
            or b with normalize="products", where without b there is none. Nothing is added at run time.
        activation: of g and of what h' is made from, a name of `rnnscan.cells.activations` or a function.
        gate_activation: of i, f and o.

    Raises:
        ValueError: if a size, a name or epsilon cannot be, or what the cell is given does not fit its parameters.
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

    Source: Ba et al. 2016, "Layer Normalization"; "products" are its equations 20 to 22, whose three biases of the
    gates are one here, and "preactivation" is Caffe2's LayerNormLSTM, whose two biases before the norm are one here.
    """

    blocks: ClassVar[int] = 4
    carry_names: ClassVar[tuple[str, ...]] = ("hidden", "cell")
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    normalize: Normalized = "preactivation"
    epsilon: float = 1e-5
    forget_bias: float = 1.0
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("LayerNormLSTM", self.epsilon)
        if self.normalize not in get_args(Normalized):
            raise ValueError(
                f"LayerNormLSTM: `normalize` must be one of {listing(get_args(Normalized))}; got {self.normalize!r}."
            )

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        params = super()._make(key, input_size)
        for norm, shape in self._norm_shapes().items():
            start = jnp.zeros if norm.endswith("bias") else jnp.ones
            params[norm] = start(shape, self.param_dtype)
        after_norm = "bias" if self.normalize == "products" else "norm_bias"
        if after_norm in params:
            forget_block = slice(self.hidden_size, 2 * self.hidden_size)
            params[after_norm] = params[after_norm].at[forget_block].add(self.forget_bias)
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
        weights, (hidden, _), x = self._enter(params, carry, x, recurrent_mask)
        products = project(x, weights["kernel"]), project(hidden, weights["recurrent_kernel"])
        normalized = self._products if self.normalize == "products" else self._preactivation
        gates = normalized(weights, *products, x.dtype)
        state, output_gate = update_state(
            gates, carry[1], activation=self.activation, gate_activation=self.gate_activation
        )
        seen = state
        if self.normalize == "products":
            seen = layer_norm(state, weights["cell_norm_scale"], epsilon=self.epsilon) + weights["cell_norm_bias"]
        hidden = output_gate * activate(self.activation, seen)
        return (hidden.astype(carry[0].dtype), state), hidden.astype(x.dtype)

    def _preactivation(self, weights: dict[str, Array], from_input: Array, from_hidden: Array, dtype: Any) -> Array:
        gates = name(with_bias(from_input + from_hidden, weights).astype(dtype), "gates")
        return (layer_norm(gates, weights["norm_scale"], epsilon=self.epsilon) + weights["norm_bias"]).astype(dtype)

    def _products(self, weights: dict[str, Array], from_input: Array, from_hidden: Array, dtype: Any) -> Array:
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
class LayerNormGRU(DenseCell):
    """The gated recurrent unit with layer normalization of each matrix product.

        [z_r z_z] = input_norm_scale_rz * LN(x W_rz) + recurrent_norm_scale_rz * LN(h U_rz) + b_rz
        r = sigmoid(z_r)    z = sigmoid(z_z)
        n = tanh(input_norm_scale_n * LN(x W_n) + b_n + r * (recurrent_norm_scale_n * LN(h U_n) + b_hn))
        h' = (1 - z) * n + z * h
        y = h'

    where LN(z) = (z - mean(z)) / sqrt(var(z) + epsilon), over the 2H units of r and z at once, and over the H of n. The
    reset gate follows the recurrent product, as in `GRU` with `reset_after=True`.

    Named "gates": the two products before they are normalized.

    Parameters: `"kernel"` W `(D, 3H)`, `"recurrent_kernel"` U `(H, 3H)`, `"input_norm_scale"` and
    `"recurrent_norm_scale"` `(3H,)`, `"bias"` b `(3H,)`, `"recurrent_bias"` b_hn `(H,)`; gate order r, z, n. Without
    `use_bias` no biases.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of the biases. Scales start as ones.
        use_bias: whether there are biases.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's.
        epsilon: added to the variance, inside the root.
        activation: of n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: of r and z.

    Raises:
        ValueError: if a size, a name or epsilon cannot be, or what the cell is given does not fit its parameters.
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

    Source: Ba et al. 2016, "Layer Normalization", the GRU of the supplementary material, whose two biases of r and z
    are one here, with z and 1 - z exchanged as in `GRU`.
    """

    blocks: ClassVar[int] = 3
    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    epsilon: float = 1e-5
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_epsilon("LayerNormGRU", self.epsilon)

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        key, recurrent_bias_key = jax.random.split(key)
        params = super()._make(key, input_size)
        for scale in ("input_norm_scale", "recurrent_norm_scale"):
            params[scale] = jnp.ones((3 * self.hidden_size,), self.param_dtype)
        if self.use_bias:
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
        products = project(x, weights["kernel"]), project(hidden, weights["recurrent_kernel"])
        from_input, from_hidden = name(jax.tree.map(lambda z: z.astype(x.dtype), products), "gates")
        from_input = with_bias(self._normalize(from_input, weights["input_norm_scale"]), weights)
        from_hidden = self._normalize(from_hidden, weights["recurrent_norm_scale"])

        split = 2 * self.hidden_size
        candidate_hidden = from_hidden[..., split:]
        if self.use_bias:
            candidate_hidden += weights["recurrent_bias"]
        gates = (from_input[..., :split] + from_hidden[..., :split]).astype(x.dtype)
        reset_gate, update_gate = jnp.split(activate(self.gate_activation, gates), 2, axis=-1)
        candidate = (from_input[..., split:] + reset_gate * candidate_hidden).astype(x.dtype)
        new_hidden = (1 - update_gate) * activate(self.activation, candidate) + update_gate * carry[0]
        return (new_hidden.astype(carry[0].dtype),), new_hidden.astype(x.dtype)

    def _normalize(self, products: Array, scale: Array) -> Array:
        """The norm of the 2H units of the gates, beside the one of the H of the candidate."""
        split = 2 * self.hidden_size
        gates = layer_norm(products[..., :split], scale[:split], epsilon=self.epsilon)
        candidate = layer_norm(products[..., split:], scale[split:], epsilon=self.epsilon)
        return jnp.concatenate([gates, candidate], axis=-1)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        scales: dict[str, tuple[Any, ...]] = dict.fromkeys(
            ("input_norm_scale", "recurrent_norm_scale"), (3 * self.hidden_size,)
        )
        return super()._shapes() | scales | ({"recurrent_bias": (self.hidden_size,)} if self.use_bias else {})
