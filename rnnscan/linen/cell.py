"""A cell of rnnscan as a module of Flax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import PRNGKey
from jaxtyping import Array

from rnnscan.compose.random import with_key
from rnnscan.protocols import InitializableCell, check_cell


class Cell(nn.RNNCellBase):
    """A cell of rnnscan as a cell of Flax.

    Its parameters are those of the cell, under the same names, in the collection "params"; carry and y are the cell's.
    It goes into `rnnscan.linen.RNN`, into Flax's own `nn.RNN`, and under `nn.scan`, `nn.remat` and the like.

    A cell with random choices, such as `rnnscan.dropout`, makes them where the rng "dropout" is given, which is
    training, and none where it is not. `rnnscan.linen.RNN` sees to it that each step makes its own. Within Flax's own
    loops say `split_rngs={"params": False, "dropout": True}`, or False for choices that hold for the whole sequence.

    Args:
        cell: a cell: `cell.init(key, input_size)`, `cell.initial_carry(x)` and `cell(params, carry, x) -> (carry, y)`.
        rng_collection: the name of the rng of random choices.
        deterministic: whether no random choice is made even where there is an rng.

    Raises:
        TypeError: if it is no cell.

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
            step: the number of the step, which random choices depend on.

        Returns:
            The new carry, and y.
        """
        params = self._params(jnp.shape(inputs)[-1])
        if self.deterministic or not self.has_rng(self.rng_collection):
            return self.cell(params, carry, inputs)
        random_step = with_key(self.cell, self.make_rng(self.rng_collection), params, inputs)
        return random_step(params, carry, (inputs, step))

    @nn.nowrap
    def initialize_carry(self, rng: PRNGKey, input_shape: tuple[int, ...]) -> Any:
        """The cell's carry of zeros, for one step's input of this shape; the key is not used."""
        return self.cell.initial_carry(jnp.zeros(input_shape))

    @nn.nowrap
    def initial_carry(self, x: Array) -> Any:
        """The cell's carry of zeros, typed like one step's input."""
        return self.cell.initial_carry(x)

    @property
    def num_feature_axes(self) -> int:
        """How many axes of an input are not the batch's: the features, and the spatial ones of a convolution."""
        return 1 + len(getattr(self.cell, "input_axes", ()))

    def _params(self, input_size: int) -> dict[str, Any]:
        shapes = jax.eval_shape(lambda: self.cell.init(jax.random.key(0), input_size))
        if not isinstance(shapes, Mapping):
            raise TypeError(
                f"linen.Cell: the parameters that `init` makes must be a dictionary; got {type(shapes).__name__} from "
                f"{self.cell!r}. Return one with a name for each array."
            )
        # One key for all of them, as the cell makes them: where one starts may depend on another.
        is_new = self.has_rng("params") and not all(self.has_variable("params", name) for name in shapes)
        made = self.cell.init(self.make_rng("params"), input_size) if is_new else None

        def start(_: Array, name: str) -> Any:
            if made is not None:
                return made[name]
            # The parameter is there. Flax asks for the shape that it should have.
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[name])

        return {name: self.param(name, start, name) for name in shapes}


def as_module(cell: Any) -> nn.Module:
    """A cell of Flax as it is, and one of rnnscan as a `Cell` that no other module owns yet.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(cell, nn.RNNCellBase) or (isinstance(cell, nn.Module) and hasattr(cell, "num_feature_axes")):
        return cell
    check_cell("linen.RNN", cell, InitializableCell)
    return Cell(cell, parent=None)
