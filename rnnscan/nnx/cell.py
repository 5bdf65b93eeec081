"""A cell of rnnscan as a module of `flax.nnx`."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from rnnscan._util.messages import describe, is_array_like
from rnnscan.cells.checks import check_size
from rnnscan.compose import with_key
from rnnscan.compose.wrapper import cells_within
from rnnscan.protocols import InitializableCell, check_cell
from rnnscan.random_choices import warned_if_random


class Cell(nnx.RNNCellBase):
    """A cell of rnnscan as a cell of `flax.nnx`: one of `rnnscan.cells`, a stack, or your own.

    Its only state is its parameters, as `nnx.Param`s. It works in the RNNs of this package and of `flax.nnx`. Its carry
    is the cell's: `(h, c)` for an `LSTM`, where Flax's is `(c, h)`.

    Args:
        cell: the cell: `init(key, input_size)`, `initial_carry(x)`, and `cell(params, carry, x) -> (carry, y)`.
        in_features: D, the size of the input's last axis.
        rngs: the stream "params" gives the key for the parameters.

    Attributes:
        params: the parameters from `cell.init`, each in an `nnx.Param`.

    Raises:
        TypeError: if `cell` is not a cell of rnnscan.
        ValueError: if `in_features` is below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from flax import nnx
        >>> from rnnscan.nnx import Cell
        >>> cell = Cell(rs.cells.LSTM(4), in_features=3, rngs=nnx.Rngs(0))
        >>> (hidden, state), y = cell(cell.initialize_carry((2, 3)), jnp.ones((2, 3)))
        >>> y.shape, cell.params["kernel"].shape
        ((2, 4), (3, 16))
    """

    def __init__(self, cell: InitializableCell, in_features: int, *, rngs: nnx.Rngs) -> None:
        _check_cell(cell)
        check_size("Cell", "in_features", in_features)
        self.cell = cell
        self.in_features = in_features
        self.params = nnx.data(jax.tree.map(nnx.Param, cell.init(rngs.params(), in_features)))

    def __call__(self, carry: Any, inputs: Any) -> tuple[Any, Any]:
        """One step: `(carry, x) -> (carry, y)`, without random choices such as dropout's."""
        return self.cell(self._values(), carry, inputs)

    def with_key(self, key: Array, x: Any) -> Any:
        """The step with random choices, `rnnscan.with_key`: `(module, carry, (x, number)) -> (carry, y)`.

        Args:
            key: a PRNG key.
            x: one step's input; only its shape matters.
        """
        step = with_key(self.cell, key, self._values(), x)
        return lambda module, carry, scanned: step(module._values(), carry, scanned)

    def warned_if_random(self, results: Any, x: Any) -> Any:
        """The results of a loop without a key, which warn where they are differentiated if the cell makes choices."""
        carry = jax.eval_shape(self.cell.initial_carry, x)
        return warned_if_random(results, "nnx.RNN", self.cell, self._values(), carry, x)

    def initial_carry(self, x: Any) -> Any:
        """The carry of zeros, typed like one step's input."""
        return self.cell.initial_carry(x)

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: nnx.Rngs | nnx.RngStream | None = None, carry_init: Any = None
    ) -> Any:
        """The initial carry for a shape, as the cells of `flax.nnx` make it.

        Args:
            input_shape: the shape of one step's input, which gets the dtype of the parameters.
            rngs: gives keys to `carry_init`; zeros need none.
            carry_init: an initializer `(key, shape, dtype) -> array`; None: zeros.

        Raises:
            ValueError: if `carry_init` is given without `rngs`.
        """
        dtype = jnp.result_type(float, *jax.tree.leaves(self._values()))
        carry = self.cell.initial_carry(jnp.zeros(input_shape, dtype))
        if carry_init is None:
            return carry
        stream = rngs.carry if isinstance(rngs, nnx.Rngs) else rngs
        if stream is None:
            raise ValueError("Cell: `carry_init` must be given with `rngs`; got rngs=None. Pass rngs=nnx.Rngs(0).")
        return jax.tree.map(lambda leaf: carry_init(stream(), leaf.shape, leaf.dtype), carry)

    @property
    def num_feature_axes(self) -> int:
        """The number of axes of one row of a step's input: the features, and the spatial axes of a convolution."""
        return 1 + len(getattr(self.cell, "input_axes", ()))

    def _values(self) -> Any:
        """The parameters as arrays."""
        return jax.tree.map(lambda param: param[...], self.params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def _check_cell(cell: Any) -> None:
    check_cell("nnx.Cell", cell, InitializableCell)
    for part in reversed(cells_within(cell)):  # The innermost cell holds the arrays.
        leaves = jax.tree.leaves(part, is_leaf=lambda leaf: leaf is None)
        if any(leaf is None or is_array_like(leaf) for leaf in leaves):
            raise TypeError(
                f"Cell: the cell must not hold arrays; got {describe(part)}, a pytree with arrays. Build it in the "
                "call of your own module, and run it there with rnnscan.scan."
            )
