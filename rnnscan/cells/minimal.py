"""minGRU and minLSTM: gated cells whose gates do not see the hidden state, so that their recurrence is linear."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells import initializers
from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Cell
from rnnscan.cells.dense import project, with_bias
from rnnscan.cells.initializers import Initializer
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class _MinimalCell(Cell):
    """What the two share: `[z_1 z_2 ...] = x W + b`, and a state that is a weighted mean of itself and a candidate."""

    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)
    names: ClassVar[tuple[str, ...]] = ("gates",)
    parameter_options: ClassVar[tuple[str, ...]] = ("use_bias",)
    blocks: ClassVar[int]

    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    bias_init: Initializer = initializers.zeros
    use_bias: bool = True
    activation: Activation = "identity"

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        kernel_key, bias_key = jax.random.split(key)
        units, blocks, dtype = self.hidden_size, self.blocks, self.param_dtype
        params = {"kernel": initializers.by_block(self.kernel_init, kernel_key, input_size, units, blocks, dtype)}
        if self.use_bias:
            params["bias"] = self.bias_init(bias_key, (blocks * units,), dtype)
        return params

    def __call__(
        self, params: dict[str, Array], carry: tuple[Array, ...], x: Num[Array, "*batch features"]
    ) -> tuple[tuple[Array, ...], Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        projected = name(with_bias(project(x, weights["kernel"]), weights).astype(x.dtype), "gates")
        *gates, candidate = jnp.split(projected, self.blocks, axis=-1)
        keep, write = self._keep_and_write(*gates)
        # The state is summed up over the whole sequence, so it is updated in its own dtype, not in the gates'.
        hidden = (keep * carry[0] + write * activate(self.activation, candidate)).astype(carry[0].dtype)
        return (hidden,), hidden.astype(x.dtype)

    def _keep_and_write(self, *gates: Array) -> tuple[Array, Array]:
        """How much of the state is kept, and how much of the candidate is written; together they are one."""
        raise NotImplementedError

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        columns = self.blocks * self.hidden_size
        return {"kernel": ("D", columns)} | ({"bias": (columns,)} if self.use_bias else {})


@dataclass(frozen=True, repr=False)
class MinGRU(_MinimalCell):
    """minGRU: a GRU without a reset gate, whose gate and candidate see the input alone.

        [a n] = x W + b          (named "gates")
        z = sigmoid(a)
        h' = (1 - z) * h + z * activation(n)
        y = h'

    h' is linear in h, elementwise: the engine makes all products at once, and nothing else is left in the loop.

    Parameters: `"kernel"` W `(D, 2H)`, `"bias"` b `(2H,)`; order z, candidate.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's.
        activation: of the candidate, a name of `rnnscan.cells.activations` or a function. "identity" is the cell as the
            paper derives it; its form in log-space has `positive`.

    Raises:
        ValueError: if the size or the activation cannot be, or what the cell is given does not fit its parameters.
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

    Source: Feng et al. 2024, "Were RNNs All We Needed?", section 3.1; the paper has no biases in its equations.
    """

    blocks: ClassVar[int] = 2

    def _keep_and_write(self, *gates: Array) -> tuple[Array, Array]:
        (update,) = gates
        return jax.nn.sigmoid(-update), jax.nn.sigmoid(update)


@dataclass(frozen=True, repr=False)
class MinLSTM(_MinimalCell):
    """minLSTM: an LSTM without an output gate, whose gates and candidate see the input alone.

        [a_f a_i n] = x W + b          (named "gates")
        f = sigmoid(a_f)    i = sigmoid(a_i)
        h' = f / (f + i) * h + i / (f + i) * activation(n)
        y = h'

    h' is linear in h, elementwise: the engine makes all products at once, and nothing else is left in the loop.

    Parameters: `"kernel"` W `(D, 3H)`, `"bias"` b `(3H,)`; order f, i, candidate.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's.
        activation: of the candidate, a name of `rnnscan.cells.activations` or a function. "identity" is the cell as the
            paper derives it; its form in log-space has `positive`.

    Raises:
        ValueError: if the size or the activation cannot be, or what the cell is given does not fit its parameters.
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

    Source: Feng et al. 2024, "Were RNNs All We Needed?", section 3.2, with the gates normalised so that the scale of h
    does not depend on time; the paper has no biases in its equations.
    """

    blocks: ClassVar[int] = 3

    def _keep_and_write(self, *gates: Array) -> tuple[Array, Array]:
        # f / (f + i) = sigmoid(log f - log i), which is not 0 / 0 where both gates are closed.
        forget, write = map(jax.nn.log_sigmoid, gates)
        return jax.nn.sigmoid(forget - write), jax.nn.sigmoid(write - forget)


def positive(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The activation of a candidate that keeps a minGRU's or minLSTM's state above zero.

        z + 0.5 where z >= 0, otherwise sigmoid(z)

    Args:
        z: any shape.

    Returns:
        The like of z, above 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.cells import minimal
        >>> [round(float(y), 2) for y in minimal.positive(jnp.array([-2.0, 0.0, 1.0]))]
        [0.12, 0.5, 1.5]

    Source: Feng et al. 2024, "Were RNNs All We Needed?", appendix B, there called g.
    """
    return jnp.where(z >= 0, z + 0.5, jax.nn.sigmoid(z))
