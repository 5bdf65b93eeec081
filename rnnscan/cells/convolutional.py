"""LSTM and GRU with convolutions over one to three spatial axes."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

from jax import lax
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.messages import describe_shape, listing
from rnnscan.cells import checks
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import KernelCell, with_bias
from rnnscan.cells.gru import GRUBase
from rnnscan.cells.memory_cell import MemoryCell
from rnnscan.naming import name


Padding = Literal["same", "valid"]

# The spatial axes of x are the last ones of these, in messages and in JAX's convolution.
_AXES = ("depth", "height", "width")
_AXIS_LETTERS = "DHW"


@dataclass(frozen=True, repr=False)
class ConvolutionalCell(KernelCell):
    """The base of cells that convolve input and hidden state, channels last.

    The recurrent convolution keeps the spatial sizes, so it has zero padding, and neither strides nor dilation.

    Args:
        kernel_size: the size of both kernels along each spatial axis.
        padding: the padding of x, "same" or "valid".
        strides: the strides over x, one per spatial axis or one for all.
        dilation: the dilation of the input kernel, one per spatial axis or one for all.
    """

    kernel_size: tuple[int, ...] = (3, 3)
    _: KW_ONLY
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

    @property
    def _window(self) -> tuple[int, ...]:
        return self.kernel_size

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

    def _project_input(self, weights: Params, x: Array) -> Array:
        _, strides, dilation = self._geometry
        convolved = convolve(x, weights["kernel"], padding=self.padding, strides=strides, dilation=dilation)
        return with_bias(convolved, weights)

    def _project_hidden(self, kernel: Array, hidden: Array) -> Array:
        return convolve(hidden, kernel)


def convolve(
    x: Float[Array, "batch *spatial channels"],
    kernel: Float[Array, "*window channels columns"],
    *,
    padding: Padding = "same",
    strides: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
) -> Float[Array, "batch *new_spatial columns"]:
    """Convolve x, channels last, in at least float32, without flipping: `y[i] = sum_k x[i + k] @ kernel[k]`."""
    letters = _AXIS_LETTERS[-(x.ndim - 2) :]
    channels_last = f"N{letters}C"
    return lax.conv_general_dilated(
        x,
        kernel,
        window_strides=strides or (1,) * len(letters),
        padding=padding.upper(),
        rhs_dilation=dilation,
        dimension_numbers=(channels_last, f"{letters}IO", channels_last),
        preferred_element_type=at_least_float32(x.dtype),
    )


@dataclass(frozen=True, repr=False)
class ConvLSTM(ConvolutionalCell, MemoryCell):
    """The LSTM with convolutions, written #, instead of matrix products.

        [z_i z_f z_g z_o] = x # W + h # U + b          (named "gates")
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    One step's input is `(N, width, D)`, `(N, height, width, D)` or `(N, depth, height, width, D)`, by the length of
    `kernel_size`. S are the sizes of these axes after the input's convolution, which `padding`, `strides` and
    `dilation` may change.

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
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Float32 keeps c exact in a bfloat16 computation.
        padding: the padding of x, "same" or "valid". h always has "same".
        strides: the strides over x, one per spatial axis or one for all.
        dilation: the dilation of the input kernel, one per spatial axis or one for all.
        forget_bias: added by `init` to the forget gate's bias, not at run time. Unused without a bias.
        activation: for g and c', a name of `rnnscan.cells.activations` or a function.
        gate_activation: for i, f and o.

    Raises:
        ValueError: if a size or a name is invalid, or an argument of a step does not fit the parameters.
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

    def _make(self, key: Array, input_size: int) -> Params:
        return self._add_forget_bias(super()._make(key, input_size))

    def __call__(
        self,
        params: Params,
        carry: Carry,
        x: Num[Array, "batch *spatial features"],
        *,
        recurrent_mask: Array | None = None,
    ) -> tuple[Carry, Float[Array, "batch *new_spatial hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden, _), x = self._enter(params, carry, x, recurrent_mask)
        convolved = self._project_input(weights, x) + self._project_hidden(weights["recurrent_kernel"], hidden)
        return self._update(name(convolved.astype(x.dtype), "gates"), carry)


@dataclass(frozen=True, repr=False)
class ConvGRU(ConvolutionalCell, GRUBase):
    """The GRU with convolutions, written #, instead of matrix products.

        r = sigmoid(x # W_r + h # U_r + b_r)
        z = sigmoid(x # W_z + h # U_z + b_z)
        n = tanh(x # W_n + b_n + r * (h # U_n + b_hn))     with reset_after=True
        n = tanh(x # W_n + b_n + (r * h) # U_n)            with reset_after=False
        h' = (1 - z) * n + z * h
        y = h'

    One step's input is `(N, width, D)`, `(N, height, width, D)` or `(N, depth, height, width, D)`, by the length of
    `kernel_size`. S are the sizes of these axes after the input's convolution, which `padding`, `strides` and
    `dilation` may change.

    Named "gates": the preactivations of the sigmoids, and both convolutions inside the tanh.

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
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        padding: the padding of x, "same" or "valid". h always has "same".
        strides: the strides over x, one per spatial axis or one for all.
        dilation: the dilation of the input kernel, one per spatial axis or one for all.
        reset_after: whether the reset gate multiplies the recurrent convolution, as in `GRU`, or the hidden state
            before it, as in the paper.
        activation: for n, a name of `rnnscan.cells.activations` or a function.
        gate_activation: for r and z.

    Raises:
        ValueError: if a size or a name is invalid, or an argument of a step does not fit the parameters.
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
    GRU-RCN of section 3.1, with z and 1 - z exchanged.
    """
