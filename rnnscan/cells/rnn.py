"""The simple recurrent network."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from jaxtyping import Array, Float, Num

from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import KernelCell, project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class RNN(KernelCell):
    """A simple recurrent cell.

        z = x W + h U + b          (named "preactivation")
        h' = activation(z)
        y = h'

    Parameters: `"kernel"` W `(D, H)`, `"recurrent_kernel"` U `(H, H)`, `"bias"` b `(H,)`.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of the input kernel.
        recurrent_init: initializer of the recurrent kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        activation: a name of `rnnscan.cells.activations`, such as "tanh" or "relu", or a function.

    Raises:
        ValueError: if the size or the activation is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.RNN(4, activation="relu")
        >>> x = jnp.ones((2, 3))
        >>> carry, y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> y.shape
        (2, 4)

    Source: Elman 1990, "Finding Structure in Time". `torch.nn.RNN` has two biases; here they are one.
    """

    blocks: ClassVar[int] = 1
    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("preactivation",)

    _: KW_ONLY
    activation: Activation = "tanh"

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden,), x = self._enter(params, carry, x, recurrent_mask)
        projected = project(x, weights["kernel"]) + project(hidden, weights["recurrent_kernel"])
        preactivation = name(with_bias(projected, weights).astype(x.dtype), "preactivation")
        hidden = activate(self.activation, preactivation)
        return (hidden.astype(carry[0].dtype),), hidden
