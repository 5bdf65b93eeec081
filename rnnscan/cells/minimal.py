"""minGRU and minLSTM: gated cells with a linear recurrence, because their gates read only the input."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class _MinimalCell(InputKernelCell):
    """The base of both: the state is a weighted mean of itself and a candidate, both with weights of `x W + b`."""

    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    activation: Activation = "identity"

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        projected = name(with_bias(project(x, weights["kernel"]), weights).astype(x.dtype), "gates")
        *gates, candidate = jnp.split(projected, self.blocks, axis=-1)
        keep, write = self._keep_and_write(*gates)
        # The state accumulates over the whole sequence, so it is updated in its own dtype, not in the gates'.
        hidden = (keep * carry[0] + write * activate(self.activation, candidate)).astype(carry[0].dtype)
        return (hidden,), hidden.astype(x.dtype)

    def _keep_and_write(self, *gates: Array) -> tuple[Array, Array]:
        """The weights of the state and of the candidate, which sum to one."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class MinGRU(_MinimalCell):
    """minGRU: a GRU without a reset gate, whose gate and candidate read only the input.

        [a n] = x W + b          (named "gates")
        z = sigmoid(a)
        h' = (1 - z) * h + z * activation(n)
        y = h'

    h' is elementwise linear in h, so the engine batches the matrix products over all steps.

    Parameters: `"kernel"` W `(D, 2H)`, `"bias"` b `(2H,)`; order z, candidate.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        activation: for the candidate, a name of `rnnscan.cells.activations` or a function. The paper's log-space form
            has `positive`.

    Raises:
        ValueError: if the size or the activation is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.MinGRU(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: Feng et al. 2024, "Were RNNs All We Needed?", section 3.1, whose equations have no biases.
    """

    blocks: ClassVar[int] = 2

    def _keep_and_write(self, *gates: Array) -> tuple[Array, Array]:
        (update,) = gates
        return jax.nn.sigmoid(-update), jax.nn.sigmoid(update)


@dataclass(frozen=True, repr=False)
class MinLSTM(_MinimalCell):
    """minLSTM: an LSTM without an output gate, whose gates and candidate read only the input.

        [a_f a_i n] = x W + b          (named "gates")
        f = sigmoid(a_f)    i = sigmoid(a_i)
        h' = f / (f + i) * h + i / (f + i) * activation(n)
        y = h'

    h' is elementwise linear in h, so the engine batches the matrix products over all steps.

    Parameters: `"kernel"` W `(D, 3H)`, `"bias"` b `(3H,)`; order f, i, candidate.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        activation: for the candidate, a name of `rnnscan.cells.activations` or a function. The paper's log-space form
            has `positive`.

    Raises:
        ValueError: if the size or the activation is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.MinLSTM(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: Feng et al. 2024, "Were RNNs All We Needed?", section 3.2, with its normalized gates, and whose equations
    have no biases.
    """

    blocks: ClassVar[int] = 3

    def _keep_and_write(self, *gates: Array) -> tuple[Array, Array]:
        # f / (f + i) = sigmoid(log f - log i), which is not 0 / 0 if both gates are closed.
        forget, write = map(jax.nn.log_sigmoid, gates)
        return jax.nn.sigmoid(forget - write), jax.nn.sigmoid(write - forget)


def positive(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """An activation for candidates that keeps the state of a minGRU or minLSTM positive.

        z + 0.5 if z >= 0, otherwise sigmoid(z)

    Args:
        z: any shape.

    Returns:
        An array of the same shape, above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells import minimal
        >>> [round(float(y), 2) for y in minimal.positive(jnp.array([-2.0, 0.0, 1.0]))]
        [0.12, 0.5, 1.5]

    Source: Feng et al. 2024, "Were RNNs All We Needed?", appendix B, where it is g.
    """
    return jnp.where(z >= 0, z + 0.5, jax.nn.sigmoid(z))
