"""ParaGRU and ParaLSTM: a GRU and an LSTM whose units read only their own past, so that Newton's method solves them."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.ranks import over_rows
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, project, with_bias
from rnnscan.cells.initializers import Initializer, xavier_uniform
from rnnscan.naming import name


def _recurrent_normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Normal values with the standard deviation `2 / sqrt(5 H)`, as in the paper's code."""
    return 2 / jnp.sqrt(5 * shape[-1]).astype(dtype) * jax.random.normal(key, shape, dtype)


@dataclass(frozen=True, repr=False)
class _ParaCell(InputKernelCell):
    """The base of both: three gates of the input, and recurrent weights that are vectors."""

    names: ClassVar[tuple[str, ...]] = ("projected_input",)
    blocks: ClassVar[int] = 3
    peepholes: ClassVar[int] = 0

    _: KW_ONLY
    kernel_init: Initializer = xavier_uniform
    recurrent_init: Initializer = _recurrent_normal

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, recurrent_key, peephole_key, bias_key = jax.random.split(key, 4)
        rows = {"recurrent_kernel": (recurrent_key, self.blocks), "peephole_kernel": (peephole_key, self.peepholes)}
        params = {"kernel": self._make_kernel(self.kernel_init, kernel_key, input_size)}
        for label, (own_key, count) in rows.items():
            if count:
                params[label] = self.recurrent_init(own_key, (count, self.hidden_size), self.param_dtype).reshape(-1)
        return params | self._make_bias(bias_key)

    def _make_bias(self, key: Array) -> Params:
        params = super()._make_bias(key)
        if params:  # The first gate begins with time scales of different lengths.
            scales = jnp.linspace(0, 1, self.hidden_size, dtype=self.param_dtype)
            params["bias"] = params["bias"].at[: self.hidden_size].add(-scales)
        return params

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        shapes = super()._shapes()
        vectors: dict[str, tuple[Any, ...]] = {"recurrent_kernel": (self._columns,)}
        if self.peepholes:
            vectors["peephole_kernel"] = (self.peepholes * self.hidden_size,)
        return {"kernel": shapes.pop("kernel")} | vectors | shapes

    def _gates(self, weights: Params, x: Array) -> list[Array]:
        projected = name(with_bias(project(x, weights["kernel"]), weights).astype(x.dtype), "projected_input")
        return jnp.split(projected, self.blocks, axis=-1)

    def _diagonals(self, weights: Params, label: str, x: Array) -> list[Array]:
        """The vectors of a weight, each with axes of size 1 for the rows of x."""
        vectors = jnp.split(weights[label], len(weights[label]) // self.hidden_size)
        # Split first: XLA for a CPU does not fuse a concatenation of gradients `(1, units)` (jax 0.10.2).
        return [over_rows(vector, x) for vector in vectors]


@dataclass(frozen=True, repr=False)
class ParaGRU(_ParaCell):
    """A GRU with diagonal recurrent weights.

        [x_z x_r x_n] = x W + b          (named "projected_input")
        z = sigmoid(x_z + a_z * h)
        r = sigmoid(x_r + a_r * h)
        n = tanh(x_n + a_n * (r * h))
        h' = (1 - z) * h + z * n
        y = h'

    The loop is elementwise, so `scan(parallel=rs.Newton())` solves it over many steps in parallel.

    Parameters: `"kernel"` W `(D, 3H)`, `"recurrent_kernel"` a `(3H,)`, `"bias"` b `(3H,)`; order z r n.
    Carry: the tuple `(h,)`, h `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias; -1 to 0 is then added to that of z, evenly spaced over the units.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        recurrent_init: initializer of the recurrent weights, called with the shape `(3, H)`.

    Raises:
        ValueError: if a size is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.ParaGRU(4), jnp.ones((64, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> (hidden,), ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, parallel=rs.Newton())
        >>> hidden.shape, ys.shape
        ((2, 4), (64, 2, 4))

    Source: Danieli et al. 2025, "ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large Language Models",
    with one head: W is not block-diagonal.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("hidden",)

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        update, reset, new = self._gates(weights, x)
        a_update, a_reset, a_new = self._diagonals(weights, "recurrent_kernel", x)
        # The state may accumulate over the whole sequence, so it is updated in its own dtype, not in the gates'.
        (hidden,) = carry
        z = jax.nn.sigmoid(update + a_update * hidden)
        r = jax.nn.sigmoid(reset + a_reset * hidden)
        n = jnp.tanh(new + a_new * (r * hidden))
        hidden = ((1 - z) * hidden + z * n).astype(hidden.dtype)
        return (hidden,), hidden.astype(x.dtype)


@dataclass(frozen=True, repr=False)
class ParaLSTM(_ParaCell):
    """An LSTM with diagonal recurrent weights, peepholes, and one gate to forget and to write.

        [x_f x_o x_g] = x W + b          (named "projected_input")
        f = sigmoid(x_f + a_f * h + p_f * c)
        c' = f * c + (1 - f) * tanh(x_g + a_g * h)
        o = sigmoid(x_o + a_o * h + p_o * c')
        h' = o * tanh(c')
        y = h'

    The loop is elementwise with blocks of 2 x 2, so `scan(parallel=rs.Newton())` solves it over many steps in parallel.

    Parameters: `"kernel"` W `(D, 3H)`, `"recurrent_kernel"` a `(3H,)`, `"peephole_kernel"` p `(2H,)`, `"bias"` b
    `(3H,)`; order f o g, of the peepholes f o.
    Carry: the tuple `(h, c)`, both `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias; -1 to 0 is then added to that of f, evenly spaced over the units.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's.
        recurrent_init: initializer of the recurrent weights and the peepholes, called with the shapes `(3, H)` and
            `(2, H)`.

    Raises:
        ValueError: if a size is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.ParaLSTM(4), jnp.ones((64, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> (hidden, state), ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, parallel=rs.Newton())
        >>> hidden.shape, state.shape, ys.shape
        ((2, 4), (2, 4), (64, 2, 4))

    Source: Danieli et al. 2025, "ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large Language Models",
    with one head: W is not block-diagonal. The coupled gate is that of Greff et al. 2015, "LSTM: A Search Space
    Odyssey".
    """

    carry_names: ClassVar[tuple[str, ...]] = ("hidden", "state")
    peepholes: ClassVar[int] = 2

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        forget, out, new = self._gates(weights, x)
        a_forget, a_out, a_new = self._diagonals(weights, "recurrent_kernel", x)
        p_forget, p_out = self._diagonals(weights, "peephole_kernel", x)
        hidden, state = carry
        f = jax.nn.sigmoid(forget + a_forget * hidden + p_forget * state)
        new_state = (f * state + (1 - f) * jnp.tanh(new + a_new * hidden)).astype(state.dtype)
        o = jax.nn.sigmoid(out + a_out * hidden + p_out * new_state)
        new_hidden = (o * jnp.tanh(new_state)).astype(hidden.dtype)
        return (new_hidden, new_state), new_hidden.astype(x.dtype)
