"""Cells of the form: dense matrix products of input and hidden state, then elementwise work."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan.cells import initializers
from rnnscan.cells.base import Cell
from rnnscan.cells.initializers import Initializer


@dataclass(frozen=True, repr=False)
class DenseCell(Cell):
    """The base of cells whose kernels have blocks `(D, H)` side by side, one for each gate and candidate.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block `(D, H)` of the input kernel.
        recurrent_init: initializer of each block `(H, H)` of the recurrent kernel.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's. Whatever the carry's dtype is, each step returns it.
    """

    # A property where it depends on the configuration.
    blocks: ClassVar[Any]
    parameter_options: ClassVar[tuple[str, ...]] = ("use_bias",)
    takes_recurrent_mask: ClassVar[bool] = True

    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    recurrent_init: Initializer = initializers.orthogonal
    bias_init: Initializer = initializers.zeros
    use_bias: bool = True

    def _make(self, key: Array, input_size: int) -> dict[str, Array]:
        kernel_key, recurrent_key, bias_key = jax.random.split(key, 3)
        units, blocks, dtype = self.hidden_size, self.blocks, self.param_dtype
        params = {
            "kernel": initializers.by_block(self.kernel_init, kernel_key, input_size, units, blocks, dtype),
            "recurrent_kernel": initializers.by_block(
                self.recurrent_init, recurrent_key, self.output_size, units, blocks, dtype
            ),
        }
        if self.use_bias:
            params["bias"] = self.bias_init(bias_key, (blocks * units,), dtype)
        return params

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        columns = self.blocks * self.hidden_size
        shapes: dict[str, tuple[Any, ...]] = {"kernel": ("D", columns), "recurrent_kernel": (self.output_size, columns)}
        return shapes | ({"bias": (columns,)} if self.use_bias else {})


def project(x: Float[Array, "*batch rows"], kernel: Float[Array, "rows columns"]) -> Float[Array, "*batch columns"]:
    """`x @ kernel` in at least float32, so that a 16-bit sum of products and bias is rounded once, at its end."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.matmul(x, kernel, preferred_element_type=wide)


def with_bias(products: Float[Array, "*batch columns"], params: dict[str, Array]) -> Float[Array, "*batch columns"]:
    """`products + bias`, where there is one."""
    return products + params["bias"] if "bias" in params else products
