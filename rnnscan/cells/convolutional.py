"""Cells whose matrix products are convolutions, over one to three spatial axes."""

from dataclasses import KW_ONLY, dataclass
from math import prod
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from rnnscan._messages import describe_shape, listing
from rnnscan.cells import checks, initializers
from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Cell
from rnnscan.cells.dense import with_bias
from rnnscan.cells.initializers import Initializer
from rnnscan.cells.memory_cell import update_state
from rnnscan.naming import name


Padding = Literal["same", "valid"]

# The last of these are the spatial axes of x, as the documentation and as JAX's convolution call them.
_AXES = ("depth", "height", "width")
_AXIS_LETTERS = "DHW"


@dataclass(frozen=True, repr=False)
class ConvolutionalCell(Cell):
    """The base of cells that convolve input and hidden state; channels are last.

    The recurrent convolution keeps the spatial sizes, so it has neither stride nor dilation, and zeros around h.

    Args:
        hidden_size: H, the number of channels of the hidden state.
        kernel_size: the size of both kernels along each spatial axis.
        kernel_init: initializer of each gate's input kernel, as a matrix of `prod(kernel_size) * D` rows.
        recurrent_init: initializer of each gate's recurrent kernel, as a matrix of `prod(kernel_size) * H` rows.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's. Whatever the carry's dtype is, each step returns it.
        padding: of the input's convolution: "same" puts zeros around x, "valid" does not.
        strides: of the input's convolution, one for each spatial axis or one for all.
        dilation: of the input's kernel, one for each spatial axis or one for all.
    """

    blocks: ClassVar[int]
    parameter_options: ClassVar[tuple[str, ...]] = ("use_bias",)
    takes_recurrent_mask: ClassVar[bool] = True

    kernel_size: tuple[int, ...] = (3, 3)
    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    recurrent_init: Initializer = initializers.orthogonal
    bias_init: Initializer = initializers.zeros
    use_bias: bool = True
    padding: Padding = "same"
    strides: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.kernel_size, tuple) or not 1 <= len(self.kernel_size) <= len(_AXES):
            raise ValueError(
                f"{self._title}: `kernel_size` must be a tuple of 1 to 3 ints, one for each spatial axis; got "
                f"{self.kernel_size!r}."
            )
        for option in ("kernel_size", "strides", "dilation"):
            sizes = self._for_each_axis(getattr(self, option))
            if len(sizes) != len(self.kernel_size):
                raise ValueError(
                    f"{self._title}: `{option}` must be an int, or a tuple with one for each of the "
                    f"{len(self.kernel_size)} axes of `kernel_size`; got {sizes!r}."
                )
            for size in sizes:
                checks.check_size(self._title, option, size)
        if self.padding not in get_args(Padding):
            raise ValueError(
                f"{self._title}: `padding` must be one of {listing(get_args(Padding))}; got {self.padding!r}."
            )

    @property
    def input_axes(self) -> tuple[str, ...]:
        """The spatial axes of x."""
        return _AXES[-len(self.kernel_size) :]

    def _for_each_axis(self, sizes: Any) -> tuple[int, ...]:
        return sizes if isinstance(sizes, tuple) else (sizes,) * len(self.kernel_size)

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        kernel_key, recurrent_key, bias_key = jax.random.split(key, 3)

        def kernel(initializer: Initializer, key: Array, channels: int) -> Array:
            rows = prod(self.kernel_size) * channels
            matrix = initializers.by_block(initializer, key, rows, self.hidden_size, self.blocks, self.param_dtype)
            return matrix.reshape(*self.kernel_size, channels, -1)

        params = {
            "kernel": kernel(self.kernel_init, kernel_key, input_size),
            "recurrent_kernel": kernel(self.recurrent_init, recurrent_key, self.hidden_size),
        }
        if self.use_bias:
            params["bias"] = self.bias_init(bias_key, (self.blocks * self.hidden_size,), self.param_dtype)
        return params

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        units, columns = self.hidden_size, self.blocks * self.hidden_size
        shapes: dict[str, tuple[Any, ...]] = {
            "kernel": (*self.kernel_size, "D", columns),
            "recurrent_kernel": (*self.kernel_size, units, columns),
        }
        return shapes | ({"bias": (columns,)} if self.use_bias else {})

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        checks.check_input(self._title, ("N", *self.input_axes, *x.shape[-1:]), x)
        spatial = tuple(map(self._output_length, x.shape[1:-1], *self._geometry))
        if self.padding == "valid" and min(spatial) < 1:
            raise ValueError(
                f"{self._title}: with padding='valid' one step's input must be at least as large as the kernel; got "
                f"{describe_shape(x.shape)} for kernel_size={self.kernel_size} and dilation={self.dilation}."
            )
        return ((x.shape[0], *spatial, self.hidden_size),) * len(self.carry_names)

    @property
    def _geometry(self) -> tuple[tuple[int, ...], ...]:
        """Size, stride and dilation along each axis."""
        return self.kernel_size, self._for_each_axis(self.strides), self._for_each_axis(self.dilation)

    def _output_length(self, length: int, kernel_size: int, stride: int, dilation: int) -> int:
        reach = 0 if self.padding == "same" else (kernel_size - 1) * dilation
        return (length - reach - 1) // stride + 1

    def _from_input(self, weights: dict[str, Array], x: Array) -> Array:
        _, strides, dilation = self._geometry
        convolved = convolve(x, weights["kernel"], padding=self.padding, strides=strides, dilation=dilation)
        return with_bias(convolved, weights)


def convolve(
    x: Float[Array, "batch *spatial channels"],
    kernel: Float[Array, "*window channels columns"],
    *,
    padding: Padding = "same",
    strides: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
) -> Float[Array, "batch *new_spatial columns"]:
    """The convolution of x, channels last, in at least float32, as `project` is for matrices.

    As everywhere in machine learning, the kernel is not flipped: the result at place i is the sum over all offsets k of
    `x[i + k] @ kernel[k]`.
    """
    letters = _AXIS_LETTERS[-(x.ndim - 2) :]
    channels_last = f"N{letters}C"
    return lax.conv_general_dilated(
        x,
        kernel,
        window_strides=strides or (1,) * len(letters),
        padding=padding.upper(),
        rhs_dilation=dilation,
        dimension_numbers=(channels_last, f"{letters}IO", channels_last),
        preferred_element_type=jnp.promote_types(x.dtype, jnp.float32),
    )


@dataclass(frozen=True, repr=False)
class ConvLSTM(ConvolutionalCell):
    """Long short-term memory whose matrix products are convolutions, written #.

        [z_i z_f z_g z_o] = x # W + h # U + b          (named "gates")
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    One step's input is `(N, width, D)`, `(N, height, width, D)` or `(N, depth, height, width, D)`, by the length of
    `kernel_size`. Below S are the sizes of these axes after the input's convolution: the same, unless `padding`,
    `strides` or `dilation` say otherwise.

    Parameters: `"kernel"` W `(*kernel_size, D, 4H)`, `"recurrent_kernel"` U `(*kernel_size, H, 4H)`, `"bias"` b
    `(4H,)`; gate order i, f, g, o.
    Carry: the tuple `(h, c)`, both `(N, *S, H)`.

    Args:
        hidden_size: H, the number of channels of h and c.
        kernel_size: the size of both kernels along each spatial axis.
        kernel_init: initializer of each gate's input kernel, as a matrix `(prod(kernel_size) * D, H)`.
        recurrent_init: initializer of each gate's recurrent kernel, as a matrix `(prod(kernel_size) * H, H)`.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's. A float32 carry keeps c exact in a bfloat16 computation.
        padding: of the input's convolution: "same" puts zeros around x, "valid" does not. h always has zeros around it.
        strides: of the input's convolution, one for each spatial axis or one for all.
        dilation: of the input's kernel, one for each spatial axis or one for all.
        forget_bias: added to the forget gate's bias where parameters are made; nothing is added at run time. Without a
            bias there is none.
        activation: of g and of c', a name of `rnnscan.cells.activations` or a function.
        gate_activation: of i, f and o.

    Raises:
        ValueError: if a size or a name cannot be, or what the cell is given does not fit its parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.ConvLSTM(4, kernel_size=(3, 3))
        >>> x = jnp.ones((2, 5, 6, 3))
        >>> (hidden, state), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, state.shape, y.shape
        ((2, 5, 6, 4), (2, 5, 6, 4), (2, 5, 6, 4))

    Source: Shi et al. 2015, "Convolutional LSTM Network: A Machine Learning Approach for Precipitation Nowcasting",
    equation 3, without its peepholes, as `keras.layers.ConvLSTM2D`.
    """

    blocks: ClassVar[int] = 4
    carry_names: ClassVar[tuple[str, ...]] = ("hidden", "cell")
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    forget_bias: float = 1.0
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        params = super()._make(key, input_size)
        if self.use_bias:
            forget_block = slice(self.hidden_size, 2 * self.hidden_size)
            params["bias"] = params["bias"].at[forget_block].add(self.forget_bias)
        return params

    def __call__(
        self,
        params: dict[str, Array],
        carry: tuple[Array, ...],
        x: Num[Array, "batch *spatial features"],
        *,
        recurrent_mask: Array | None = None,
    ) -> tuple[tuple[Array, ...], Float[Array, "batch *new_spatial hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden, _), x = self._enter(params, carry, x, recurrent_mask)
        convolved = self._from_input(weights, x) + convolve(hidden, weights["recurrent_kernel"])
        gates = name(convolved.astype(x.dtype), "gates")
        state, output_gate = update_state(
            gates, carry[1], activation=self.activation, gate_activation=self.gate_activation
        )
        hidden = output_gate * activate(self.activation, state)
        return (hidden.astype(carry[0].dtype), state), hidden.astype(x.dtype)


@dataclass(frozen=True, repr=False)
class ConvGRU(ConvolutionalCell):
    """The gated recurrent unit whose matrix products are convolutions, written #.

        r = sigmoid(x # W_r + h # U_r + b_r)
        z = sigmoid(x # W_z + h # U_z + b_z)
        n = tanh(x # W_n + b_n + r * (h # U_n + b_hn))     with reset_after=True
        n = tanh(x # W_n + b_n + (r * h) # U_n)            with reset_after=False
        h' = (1 - z) * n + z * h
        y = h'

    One step's input is `(N, width, D)`, `(N, height, width, D)` or `(N, depth, height, width, D)`, by the length of
    `kernel_size`. Below S are the sizes of these axes after the input's convolution: the same, unless `padding`,
    `strides` or `dilation` say otherwise.

    Named "gates": what stands inside the sigmoids and, of the tanh, each convolution.

    Parameters: `"kernel"` W `(*kernel_size, D, 3H)`, `"recurrent_kernel"` U `(*kernel_size, H, 3H)`, `"bias"` b
    `(3H,)`, and with `reset_after=True` `"recurrent_bias"` b_hn `(H,)`; gate order r, z, n. Without `use_bias` no
    biases.
    Carry: the tuple `(h,)`, h `(N, *S, H)`.

    Args:
        hidden_size: H, the number of channels of h.
        kernel_size: the size of both kernels along each spatial axis.
        kernel_init: initializer of each gate's input kernel, as a matrix `(prod(kernel_size) * D, H)`.
        recurrent_init: initializer of each gate's recurrent kernel, as a matrix `(prod(kernel_size) * H, H)`.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's.
        padding: of the input's convolution: "same" puts zeros around x, "valid" does not. h always has zeros around it.
        strides: of the input's convolution, one for each spatial axis or one for all.
        dilation: of the input's kernel, one for each spatial axis or one for all.
        reset_after: whether the reset gate follows the recurrent convolution, as in `GRU`, or precedes it, as in the
            paper.
        activation: of n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: of r and z.

    Raises:
        ValueError: if a size or a name cannot be, or what the cell is given does not fit its parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.ConvGRU(4, kernel_size=(3,))
        >>> x = jnp.ones((2, 5, 3))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 5, 4), (2, 5, 4))

    Source: Ballas et al. 2016, "Delving Deeper into Convolutional Networks for Learning Video Representations", the
    GRU-RCN of section 3.1, with z and 1 - z exchanged as in `GRU`.
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
        x: Num[Array, "batch *spatial features"],
        *,
        recurrent_mask: Array | None = None,
    ) -> tuple[tuple[Array, ...], Float[Array, "batch *new_spatial hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden,), x = self._enter(params, carry, x, recurrent_mask)
        products = self._reset_after if self.reset_after else self._reset_before
        update_gate, candidate = products(weights, self._from_input(weights, x), hidden)
        new_hidden = (1 - update_gate) * activate(self.activation, candidate) + update_gate * carry[0]
        return (new_hidden.astype(carry[0].dtype),), new_hidden.astype(x.dtype)

    def _reset_after(self, weights: dict[str, Array], from_input: Array, hidden: Array) -> tuple[Array, Array]:
        split = 2 * self.hidden_size
        from_hidden = convolve(hidden, weights["recurrent_kernel"])
        candidate_hidden = from_hidden[..., split:]
        if self._has_recurrent_bias:
            candidate_hidden += weights["recurrent_bias"]
        products = (from_input[..., :split] + from_hidden[..., :split], from_input[..., split:], candidate_hidden)
        gates, candidate_input, candidate_hidden = name(
            jax.tree.map(lambda z: z.astype(hidden.dtype), products), "gates"
        )
        reset_gate, update_gate = self._gates(gates)
        return update_gate, candidate_input + reset_gate * candidate_hidden

    def _reset_before(self, weights: dict[str, Array], from_input: Array, hidden: Array) -> tuple[Array, Array]:
        split = 2 * self.hidden_size
        of_gates, of_candidate = jnp.split(weights["recurrent_kernel"], [split], axis=-1)
        gates = name((from_input[..., :split] + convolve(hidden, of_gates)).astype(hidden.dtype), "gates")
        reset_gate, update_gate = self._gates(gates)
        from_reset = convolve(reset_gate * hidden, of_candidate)
        return update_gate, name((from_input[..., split:] + from_reset).astype(hidden.dtype), "gates")

    def _gates(self, gates: Array) -> list[Array]:
        return jnp.split(activate(self.gate_activation, gates), 2, axis=-1)

    @property
    def _has_recurrent_bias(self) -> bool:
        return self.reset_after and self.use_bias

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return super()._shapes() | ({"recurrent_bias": (self.hidden_size,)} if self._has_recurrent_bias else {})
