"""A cell of rnnscan as a module of `flax.linen`."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import PRNGKey
from jaxtyping import Array

from rnnscan.paths import parts
from rnnscan.protocols import InitializableCell, check_cell
from rnnscan.random_choices import warned_if_random
from rnnscan.randomness import with_key


class Cell(nn.RNNCellBase):
    """A cell of rnnscan as a cell of `flax.linen`.

    The collection "params" holds the cell's parameters under their own names; carry and y are the cell's. It works in
    `rnnscan.linen.RNN`, in Flax's `nn.RNN`, and under `nn.scan` and `nn.remat`.

    A cell with random choices, such as `rnnscan.dropout`, makes them only if the rng "dropout" is given: training. In
    `rnnscan.linen.RNN` a gradient without it warns (`rnnscan.NoKeyWarning`).
    `rnnscan.linen.RNN` gives each step its own. In Flax's loops pass
    `split_rngs={"params": False, "dropout": True}`, or False to repeat one choice for the whole sequence.

    Args:
        cell: a cell: `cell.init(key, input_size)`, `cell.initial_carry(x)` and `cell(params, carry, x) -> (carry, y)`.
        rng_collection: the name of the rng for random choices.
        deterministic: whether to make no random choices even if the rng is given.

    Raises:
        TypeError: if `cell` is not a cell.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from flax import linen as nn
        >>> import rnnscan as rs
        >>> from rnnscan import linen
        >>> model = nn.RNN(linen.Cell(rs.cells.LSTM(4)))
        >>> variables = model.init(jax.random.key(0), jnp.ones((2, 5, 3)))
        >>> jax.tree.map(jnp.shape, variables["params"]["cell"])
        {'bias': (16,), 'kernel': (3, 16), 'recurrent_kernel': (4, 16)}
    """

    cell: InitializableCell
    rng_collection: str = "dropout"
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_cell("linen.Cell", self.cell, InitializableCell)
        super().__post_init__()

    @nn.compact
    def __call__(self, carry: Any, inputs: Any, *, step: Any = 0) -> tuple[Any, Any]:
        """One step: `(carry, inputs) -> (carry, y)`.

        Args:
            carry: the carry.
            inputs: one step's input `(*batch, D)`.
            step: the step's number, which random choices depend on.

        Returns:
            The new carry, and y.
        """
        params = self._params(jnp.shape(inputs)[-1])
        with parts((self.name or "cell",)):
            if self.deterministic or not self.has_rng(self.rng_collection):
                return self.cell(params, carry, inputs)
            random_step = with_key(self.cell, self.make_rng(self.rng_collection), params, inputs)
            return random_step(params, carry, (inputs, step))

    @nn.nowrap
    def warned_if_random(self, results: Any, x: Any) -> Any:
        """The results of a loop without the rng, which warn where they are differentiated if the cell makes choices."""
        if self.deterministic:
            return results
        params = jax.eval_shape(lambda: self.cell.init(jax.random.key(0), jnp.shape(x)[-1]))
        carry = jax.eval_shape(self.cell.initial_carry, x)
        remedy = (
            f'Pass rngs={{"{self.rng_collection}": jax.random.key(0)}}, and another key at each step of training, or '
            "wrap the cell in linen.Cell(cell, deterministic=True)."
        )
        lacking = f'the rng "{self.rng_collection}"'
        return warned_if_random(results, "linen.RNN", self.cell, params, carry, x, lacking=lacking, remedy=remedy)

    @nn.nowrap
    def initialize_carry(self, rng: PRNGKey, input_shape: tuple[int, ...]) -> Any:
        """The cell's carry of zeros for one step's input of this shape; the key is unused."""
        return self.cell.initial_carry(jnp.zeros(input_shape))

    @nn.nowrap
    def initial_carry(self, x: Array) -> Any:
        """The cell's carry of zeros, typed like one step's input."""
        return self.cell.initial_carry(x)

    @property
    def num_feature_axes(self) -> int:
        """The number of axes of an input besides the batch: the features, and the spatial axes of a convolution."""
        return 1 + len(getattr(self.cell, "input_axes", ()))

    def _params(self, input_size: int) -> dict[str, Any]:
        shapes = jax.eval_shape(lambda: self.cell.init(jax.random.key(0), input_size))
        if not isinstance(shapes, Mapping):
            raise TypeError(
                f"linen.Cell: the cell's `init` must return a dictionary; got {type(shapes).__name__} from "
                f"{self.cell!r}. Return a dictionary with a name for each array."
            )
        # All from one key, because the cell's `init` makes them together.
        is_new = self.has_rng("params") and not all(self.has_variable("params", name) for name in shapes)
        params = self.cell.init(self.make_rng("params"), input_size) if is_new else None

        def start(_: Array, name: str) -> Any:
            if params is not None:
                return params[name]
            # The parameter exists; Flax only compares its shape.
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[name])

        return {name: self.param(name, start, name) for name in shapes}


def as_module(cell: Any) -> nn.Module:
    """Return a cell of Flax unchanged, and wrap a cell of rnnscan in a `Cell` without a parent module."""
    if isinstance(cell, nn.RNNCellBase) or (isinstance(cell, nn.Module) and hasattr(cell, "num_feature_axes")):
        return cell
    check_cell("linen.RNN", cell, InitializableCell)
    return Cell(cell, parent=None)
