"""The quasi-recurrent network: gates from convolutions over time, and a pooling without weights."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.messages import listing, nearest
from rnnscan.cells import checks
from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, project, with_bias
from rnnscan.naming import name


# The number of gates of each pooling, besides the candidate.
_GATES = {"f": 1, "fo": 2, "ifo": 3}


@dataclass(frozen=True, repr=False)
class QRNN(InputKernelCell):
    """The quasi-recurrent network: one step of its convolution and of its pooling.

        [a_z a_f a_o a_i] = sum_k x_k W_k + b          (named "gates"), over the last `window` inputs x_k
        z = tanh(a_z)    f = sigmoid(a_f)    o = sigmoid(a_o)    i = sigmoid(a_i)
        c' = f * c + (1 - f) * z               with pooling "f" and "fo"
        c' = f * c + i * z                     with pooling "ifo"
        y = c' with pooling "f", otherwise o * c'

    c' is elementwise linear in c, so the engine batches the matrix products over all steps.

    Parameters: `"kernel"` W `(window, D, H B)`, the oldest input first, and `"bias"` b `(H B,)`; block order z, f, o,
    i, of which pooling "f" has B = 2, "fo" 3 and "ifo" 4.
    Carry: the tuple `(c, inputs)`, c `(N, H)` and inputs `(N, window - 1, D)`, the oldest first. The initial zeros are
    the padding of a causal convolution.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel, as a matrix `(window D, H)`.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Float32 keeps c exact in a bfloat16 computation.
        pooling: the gates, "f", "fo" or "ifo".
        window: the number of inputs that the gates read, including the step's own.
        activation: for z, a name of `rnnscan.cells.activations` or a function.
        gate_activation: for f, o and i.

    Raises:
        ValueError: if a size or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.QRNN(4, window=3)
        >>> x = jnp.ones((2, 5))
        >>> (state, inputs), y = cell(cell.init(jax.random.key(0), input_size=5), cell.initial_carry(x), x)
        >>> state.shape, inputs.shape, y.shape
        ((2, 4), (2, 2, 5), (2, 4))

    Source: Bradbury et al. 2016, "Quasi-Recurrent Neural Networks", equations 1 to 5, which have no biases.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("cell", "inputs")
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    pooling: str = "fo"
    window: int = 2
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_size("QRNN", "window", self.window)
        if self.pooling not in _GATES:
            raise ValueError(
                f"QRNN: `pooling` must be one of {listing(_GATES)}; got {self.pooling!r}."
                f"{nearest(self.pooling, _GATES)}"
            )

    @property
    def output_part(self) -> int | None:
        """The index of c if y is c, or None with an output gate."""
        return 0 if self.pooling == "f" else None

    @property
    def blocks(self) -> int:
        """The number of gates and candidates."""
        return 1 + _GATES[self.pooling]

    @property
    def _window(self) -> tuple[int, ...]:
        return (self.window,)

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (_, earlier), x = self._enter(params, carry, x)
        seen = [*(earlier[..., step, :] for step in range(self.window - 1)), x]
        products = project(jnp.concatenate(seen, axis=-1), weights["kernel"].reshape(-1, self._columns))
        projected = name(with_bias(products, weights).astype(x.dtype), "gates")
        candidate, *gates = jnp.split(projected, self.blocks, axis=-1)
        forget, *later_gates = (activate(self.gate_activation, gate) for gate in gates)
        write = later_gates[1] if self.pooling == "ifo" else 1 - forget
        # The state accumulates over the whole sequence, so it is updated in its own dtype, not in the gates'.
        state = (forget * carry[0] + write * activate(self.activation, candidate)).astype(carry[0].dtype)
        y = state if self.pooling == "f" else later_gates[0] * state
        inputs = jnp.stack(seen[1:], axis=-2).astype(carry[1].dtype) if self.window > 1 else carry[1]
        return (state, inputs), y.astype(x.dtype)

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        *batch, input_size = x.shape
        return (*batch, self.hidden_size), (*batch, self.window - 1, input_size)
