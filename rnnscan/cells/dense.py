"""Bases of cells with fused kernels, and their matrix products."""

from dataclasses import KW_ONLY, dataclass
from math import prod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan.cells import initializers
from rnnscan.cells.base import Cell, Params
from rnnscan.cells.initializers import Initializer


@dataclass(frozen=True, repr=False)
class InputKernelCell(Cell):
    """The base of cells with a kernel for the input, which has one block of columns `(D, H)` per gate and candidate.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Each step keeps the dtype of its carry.
    """

    # The number of blocks. A property if it depends on the options.
    blocks: ClassVar[Any]
    parameter_options: ClassVar[tuple[str, ...]] = ("use_bias",)

    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    bias_init: Initializer = initializers.zeros
    use_bias: bool = True

    @property
    def _window(self) -> tuple[int, ...]:
        """The leading axes of the kernels, if they are convolved."""
        return ()

    @property
    def _columns(self) -> int:
        return self.blocks * self.hidden_size

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, bias_key = jax.random.split(key)
        return {"kernel": self._make_kernel(self.kernel_init, kernel_key, input_size)} | self._make_bias(bias_key)

    def _make_kernel(self, initializer: Initializer, key: Array, channels: int) -> Array:
        rows = prod(self._window) * channels
        matrix = initializers.by_block(initializer, key, rows, self.hidden_size, self.blocks, self.param_dtype)
        return matrix.reshape(*self._window, channels, -1)

    def _make_bias(self, key: Array) -> Params:
        return {"bias": self.bias_init(key, (self._columns,), self.param_dtype)} if self.use_bias else {}

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        shapes: dict[str, tuple[Any, ...]] = {"kernel": (*self._window, "D", self._columns)}
        return shapes | ({"bias": (self._columns,)} if self.use_bias else {})


@dataclass(frozen=True, repr=False)
class KernelCell(InputKernelCell):
    """The base of cells with a kernel for the input and one for the hidden state, with the same blocks.

    Args:
        recurrent_init: initializer of each block of the recurrent kernel.
    """

    takes_recurrent_mask: ClassVar[bool] = True

    _: KW_ONLY
    recurrent_init: Initializer = initializers.orthogonal

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, recurrent_key, bias_key = jax.random.split(key, 3)
        params = {
            "kernel": self._make_kernel(self.kernel_init, kernel_key, input_size),
            "recurrent_kernel": self._make_kernel(self.recurrent_init, recurrent_key, self.output_size),
        }
        return params | self._make_bias(bias_key)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        shapes = super()._shapes()
        recurrent_kernel = {"recurrent_kernel": (*self._window, self.output_size, self._columns)}
        return {"kernel": shapes.pop("kernel")} | recurrent_kernel | shapes

    def _project_input(self, weights: Params, x: Array) -> Array:
        """`x W + b`."""
        return with_bias(project(x, weights["kernel"]), weights)

    def _project_hidden(self, kernel: Array, hidden: Array) -> Array:
        """`h U`."""
        return project(hidden, kernel)


def project(x: Float[Array, "*batch rows"], kernel: Float[Array, "rows columns"]) -> Float[Array, "*batch columns"]:
    """Compute `x @ kernel` in at least float32, so that a 16-bit sum of products and bias is rounded only once."""
    wide = at_least_float32(x.dtype)
    return jnp.matmul(x, kernel, preferred_element_type=wide)


def with_bias(products: Float[Array, "*batch columns"], params: Params) -> Float[Array, "*batch columns"]:
    """Add the bias, if there is one."""
    return products + over_rows(params["bias"], products) if "bias" in params else products
