"""Long short-term memory."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells.base import DenseCell, project
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class LSTM(DenseCell):
    """Long short-term memory.

        [z_i z_f z_g z_o] = x W + h U + b          (named "gates")
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    Parameters: `"kernel"` W `(D, 4H)`, `"recurrent_kernel"` U `(H, 4H)`, `"bias"` b `(4H,)`; gate order i, f, g, o.
    Carry: the tuple `(h, c)`, each `(N, H)`, as in torch, Keras and cuDNN. Flax has `(c, h)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel.
        bias_init: initializer of the bias.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's. A float32 carry keeps c exact in a bfloat16 computation.
        forget_bias: added to the forget gate's bias where parameters are made. Nothing is added at run time, so
            weights move to and from other libraries as they are.

    Raises:
        ValueError: if the size cannot be, or what the cell is given does not fit its parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.LSTM(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden, state), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, state.shape, y.shape
        ((2, 4), (2, 4), (2, 4))

    Source: Hochreiter and Schmidhuber 1997; forget gates of Gers et al. 2000; `torch.nn.LSTM`, whose two biases are
    one here; forget_bias from Jozefowicz et al. 2015, "An Empirical Exploration of Recurrent Network Architectures".
    """

    blocks: ClassVar[int] = 4
    carry_names: ClassVar[tuple[str, ...]] = ("hidden", "cell")
    names: ClassVar[tuple[str, ...]] = ("gates",)

    forget_bias: float = 1.0

    def init(self, key: Array, input_size: int) -> dict[str, Array]:
        """Make parameters, as `DenseCell.init`, with `forget_bias` in the forget gate's bias."""
        params = super().init(key, input_size)
        forget = slice(self.hidden_size, 2 * self.hidden_size)
        return params | {"bias": params["bias"].at[forget].add(self.forget_bias)}

    def __call__(
        self, params: dict[str, Array], carry: tuple[Array, ...], x: Num[Array, "*batch features"]
    ) -> tuple[tuple[Array, ...], Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden, _), x = self._enter(params, carry, x)
        projected = project(x, weights["kernel"]) + project(hidden, weights["recurrent_kernel"])
        gates = name((projected + weights["bias"]).astype(x.dtype), "gates")
        input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4, axis=-1)
        # The cell state is summed up over the whole sequence, so it is updated in its own dtype, not in the gates'.
        kept = jax.nn.sigmoid(forget_gate) * carry[1]
        state = (kept + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)).astype(carry[1].dtype)
        hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(state)
        return (hidden.astype(carry[0].dtype), state), hidden.astype(x.dtype)
