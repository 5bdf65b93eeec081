"""The independently recurrent network: each unit reads only its own past."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Float, Num

from rnnscan._util.ranks import over_rows
from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class IndRNN(InputKernelCell):
    """An independently recurrent cell.

        z = x W + b          (named "projected_input")
        h' = activation(z + u * h)
        y = h'

    Parameters: `"kernel"` W `(D, H)`, `"recurrent_kernel"` u `(H,)`, `"bias"` b `(H,)`.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of the input kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Float32 keeps h exact in a bfloat16 computation.
        recurrent_max: the upper limit of the uniform distribution of u in `init`; the lower limit is 0. Over T steps h
            grows at most by `recurrent_max ** T`. The paper takes `2 ** (1 / T)` and also clips u to it after each
            update, which is left to the optimizer.
        activation: a name of `rnnscan.cells.activations`, such as "relu" or "tanh", or a function.

    Raises:
        ValueError: if a size or the activation is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.IndRNN(4, recurrent_max=2 ** (1 / 100))
        >>> x = jnp.ones((2, 3))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: Li et al. 2018, "Independently Recurrent Neural Network (IndRNN): Building A Longer and Deeper RNN".
    """

    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("projected_input",)

    _: KW_ONLY
    recurrent_max: float = 1.0
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.recurrent_max > 0:
            raise ValueError(f"IndRNN: `recurrent_max` must be a number above 0; got {self.recurrent_max!r}.")

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, recurrent_key, bias_key = jax.random.split(key, 3)
        units, dtype = (self.hidden_size,), self.param_dtype
        params = {
            "kernel": self.kernel_init(kernel_key, (input_size, *units), dtype),
            "recurrent_kernel": jax.random.uniform(recurrent_key, units, dtype, maxval=self.recurrent_max),
        }
        if self.use_bias:
            params["bias"] = self.bias_init(bias_key, units, dtype)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        projected = name(with_bias(project(x, weights["kernel"]), weights).astype(x.dtype), "projected_input")
        # h may accumulate over the whole sequence, so it is updated in its own dtype, not in the input's.
        hidden = activate(self.activation, projected + over_rows(weights["recurrent_kernel"], carry[0]) * carry[0])
        return (hidden.astype(carry[0].dtype),), hidden.astype(x.dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        units = self.hidden_size
        shapes: dict[str, tuple[Any, ...]] = {"kernel": ("D", units), "recurrent_kernel": (units,)}
        return shapes | ({"bias": (units,)} if self.use_bias else {})
