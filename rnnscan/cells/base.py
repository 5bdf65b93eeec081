"""What the cells of the library share: configuration, dtypes, and the checks of what they are given."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rnnscan.cells import initializers
from rnnscan.cells.initializers import Initializer
from rnnscan.messages import describe


@dataclass(frozen=True)
class GatedCell:
    """The base of cells of the form: matrix products of input and hidden state, then elementwise work.

    Subclasses say how many gates their fused kernels have, and what their carry is.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel `(D, H)`.
        recurrent_init: initializer of each gate's recurrent kernel `(H, H)`.
        bias_init: initializer of the biases.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's. Whatever the carry's dtype is, each step returns it.
    """

    gates: ClassVar[int]
    carry_names: ClassVar[tuple[str, ...]]
    names: ClassVar[tuple[str, ...]]

    hidden_size: int
    kernel_init: Initializer = initializers.lecun_normal
    recurrent_init: Initializer = initializers.orthogonal
    bias_init: Initializer = initializers.zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_dtype: Any = None

    def __post_init__(self) -> None:
        size = self.hidden_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"{type(self).__name__}: `hidden_size` must be a number of units of at least 1; got {size!r}."
            )

    @property
    def output_size(self) -> int:
        """The size of y's last axis."""
        return self.hidden_size

    def init(self, key: Array, input_size: int) -> dict[str, Array]:
        """Make parameters.

        Args:
            key: a PRNG key.
            input_size: D, the size of the input's last axis.

        Returns:
            A dictionary of arrays of `param_dtype`: `"kernel"` `(D, gates * H)`, `"recurrent_kernel"`
            `(H, gates * H)`, `"bias"` `(gates * H,)`, and what the cell adds.
        """
        kernel_key, recurrent_key, bias_key = jax.random.split(key, 3)
        units, gates, dtype = self.hidden_size, self.gates, self.param_dtype
        return {
            "kernel": initializers.by_gate(self.kernel_init, kernel_key, input_size, units, gates, dtype),
            "recurrent_kernel": initializers.by_gate(self.recurrent_init, recurrent_key, units, units, gates, dtype),
            "bias": self.bias_init(bias_key, (gates * units,), dtype),
        }

    def initial_carry(self, x: Float[Array, "*batch features"]) -> tuple[Array, ...]:
        """The carry of zeros, typed like one step's input.

        Args:
            x: one step's input `(N, D)`; its values do not matter.

        Returns:
            A tuple of arrays `(N, H)`, in the order of `carry_names`.
        """
        dtype = self.carry_dtype or (x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else self.param_dtype)
        # From x, and not by jnp.zeros: under shard_map the carry must vary over the mesh as x does.
        zeros = lax.full_like(x, 0, dtype=dtype, shape=(*x.shape[:-1], self.hidden_size))
        return (zeros,) * len(self.carry_names)

    def _enter(
        self, params: dict[str, Array], carry: Any, x: Array
    ) -> tuple[dict[str, Array], tuple[Array, ...], Array]:
        """Check what the cell was given, and cast it to the dtype of the computation."""
        self._check(params, carry, x)
        dtype = self.dtype or jnp.result_type(x, *jax.tree.leaves(params))
        cast_params = {name: leaf.astype(dtype) for name, leaf in params.items()}
        return cast_params, tuple(leaf.astype(dtype) for leaf in carry), x.astype(dtype)

    def _check(self, params: dict[str, Array], carry: Any, x: Array) -> None:
        cell, units = type(self).__name__, self.hidden_size
        kernel = params["kernel"]
        if kernel.shape[1] != self.gates * units:
            raise ValueError(
                f"{cell}: the kernel must be (D, {self.gates * units}) for {units} units; got {describe(kernel)}. "
                "The parameters are those of a cell of another kind or size."
            )
        if x.shape[-1:] != kernel.shape[:1]:
            raise ValueError(
                f"{cell}: one step's input must be (N, {kernel.shape[0]}) for these parameters; got {describe(x)}. "
                f"Use the same input_size in init, {x.shape[-1] if x.ndim else 'none'} here."
            )
        expected = (*x.shape[:-1], units)
        if not isinstance(carry, tuple) or len(carry) != len(self.carry_names):
            raise TypeError(
                f"{cell}: the carry must be the tuple ({', '.join(self.carry_names)},) of arrays {expected}; got "
                f"{jax.tree.map(describe, carry)}. Start from cell.initial_carry(x)."
            )
        for part, leaf in zip(self.carry_names, carry, strict=True):
            if leaf.shape != expected:
                raise ValueError(
                    f"{cell}: {part} in the carry must be of shape {expected}, as one step's input {describe(x)} has "
                    f"it; got {describe(leaf)}. A carry of another batch size does not fit: start from "
                    "cell.initial_carry(x)."
                )


def project(x: Float[Array, "*batch rows"], kernel: Float[Array, "rows columns"]) -> Float[Array, "*batch columns"]:
    """`x @ kernel`, accumulated in at least float32.

    Matrix units take 16-bit operands at full speed only with a 32-bit sum, and the sum is better for it.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.matmul(x, kernel, preferred_element_type=wide)
