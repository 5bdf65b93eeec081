"""What the cells of the library share: configuration, dtypes, and the checks of what they are given."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from rnnscan.cells import initializers
from rnnscan.cells.initializers import Initializer
from rnnscan.messages import describe


@dataclass(frozen=True, repr=False)
class DenseCell:
    """The base of cells of the form: dense matrix products of input and hidden state, then elementwise work.

    Subclasses say how many blocks `(D, H)` their kernels have side by side, one for each gate and candidate, and what
    their carry is.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block `(D, H)` of the input kernel.
        recurrent_init: initializer of each block `(H, H)` of the recurrent kernel.
        bias_init: initializer of the biases.
        dtype: of the computation and of y; None: as input and parameters promote.
        param_dtype: of the parameters.
        carry_dtype: of the initial carry; None: the input's. Whatever the carry's dtype is, each step returns it.
    """

    blocks: ClassVar[int]
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
        self._check_size("hidden_size", self.hidden_size)
        for field in ("dtype", "param_dtype", "carry_dtype"):
            # One spelling, so that cells given jnp.bfloat16 and "bfloat16" are equal. A type, because
            # np.dtype("float64") equals None, and a cell in float64 would equal one without a dtype.
            object.__setattr__(self, field, self._floating(field, getattr(self, field)))

    def __repr__(self) -> str:
        """The configuration, as far as it differs from the default."""
        shown = [
            f"{field.name}={_show(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

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
            A dictionary of arrays of `param_dtype`: `"kernel"` `(D, blocks * H)`, `"recurrent_kernel"`
            `(H, blocks * H)`, `"bias"` `(blocks * H,)`, and what the cell adds.

        Raises:
            ValueError: if `input_size` is not at least 1.
        """
        self._check_size("input_size", input_size)
        kernel_key, recurrent_key, bias_key = jax.random.split(key, 3)
        units, blocks, dtype = self.hidden_size, self.blocks, self.param_dtype
        return {
            "kernel": initializers.by_block(self.kernel_init, kernel_key, input_size, units, blocks, dtype),
            "recurrent_kernel": initializers.by_block(self.recurrent_init, recurrent_key, units, units, blocks, dtype),
            "bias": self.bias_init(bias_key, (blocks * units,), dtype),
        }

    def initial_carry(self, x: Num[Array, "*batch features"]) -> tuple[Array, ...]:
        """The carry of zeros, typed like one step's input.

        Args:
            x: one step's input `(N, D)`; its values do not matter.

        Returns:
            A tuple of arrays `(N, H)`, in the order of `carry_names`.
        """
        dtype = self.carry_dtype
        if dtype is None:
            dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else self.param_dtype
        # From x, and not by jnp.zeros: under shard_map the carry must vary over the mesh as x does.
        zeros = lax.full_like(x, 0, dtype=dtype, shape=(*x.shape[:-1], self.hidden_size))
        return (zeros,) * len(self.carry_names)

    def _enter(
        self, params: dict[str, Array], carry: Any, x: Array
    ) -> tuple[dict[str, Array], tuple[Array, ...], Array]:
        """Check what the cell was given, and cast it to the dtype of the computation."""
        self._check_params(params)
        self._check_input(params["kernel"], x)
        self._check_carry(carry, x)
        dtype = jnp.result_type(x, *jax.tree.leaves(params)) if self.dtype is None else self.dtype
        # Cast in the step, and not once before the loop: the gradients of all steps are then summed in param_dtype.
        cast_params = {name: leaf.astype(dtype) for name, leaf in params.items()}
        return cast_params, tuple(leaf.astype(dtype) for leaf in carry), x.astype(dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        """The shapes of the parameters; "D" stands for any size."""
        units, columns = self.hidden_size, self.blocks * self.hidden_size
        return {"kernel": ("D", columns), "recurrent_kernel": (units, columns), "bias": (columns,)}

    def _fits(self, params: Any) -> bool:
        shapes = self._shapes()
        return (
            isinstance(params, Mapping)
            and params.keys() == shapes.keys()
            and all(_has_shape(params[name], shape) for name, shape in shapes.items())
        )

    def _likely_cause(self, params: Any) -> str:
        return "They are those of a cell of another kind or size."

    def _check_params(self, params: Any) -> None:
        if self._fits(params):
            return
        expected = ", ".join(f"{name!r} {describe_shape(shape)}" for name, shape in self._shapes().items())
        if not isinstance(params, Mapping):
            raise TypeError(
                f"{type(self).__name__}: the parameters must be a dictionary of {expected}; got {describe(params)}. "
                "Make them with cell.init(key, input_size); the arguments of a cell are (params, carry, x)."
            )
        got = ", ".join(f"{name!r} {describe(leaf)}" for name, leaf in params.items()) or "none"
        raise ValueError(
            f"{type(self).__name__}: the parameters of {self.hidden_size} units must be {expected}; got {got}. "
            f"{self._likely_cause(params)}"
        )

    def _check_input(self, kernel: Array, x: Array) -> None:
        if x.shape[-1:] != kernel.shape[:1]:
            raise ValueError(
                f"{type(self).__name__}: one step's input must be (N, {kernel.shape[0]}) for these parameters; got "
                f"{describe(x)}. The input_size that init was given is the size of the input's last axis."
            )

    def _check_carry(self, carry: Any, x: Array) -> None:
        cell, expected = type(self).__name__, (*x.shape[:-1], self.hidden_size)
        if not isinstance(carry, tuple) or len(carry) != len(self.carry_names):
            raise TypeError(
                f"{cell}: the carry must be the tuple {describe_shape(self.carry_names)} of arrays "
                f"{describe_shape(expected)}; got {_show_tree(carry)}. Start from cell.initial_carry(x)."
            )
        for part, leaf in zip(self.carry_names, carry, strict=True):
            if jnp.shape(leaf) != expected:
                raise ValueError(
                    f"{cell}: {part} in the carry must be {describe_shape(expected)}, as one step's input "
                    f"{describe(x)} has it; got {describe(leaf)}. A carry of another batch or hidden size does not "
                    "fit: start from cell.initial_carry(x); xs is time-major, (T, N, D)."
                )
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise TypeError(
                    f"{cell}: {part} in the carry must be of a floating dtype, because the new one is cast to it; got "
                    f"{describe(leaf)}. Start from cell.initial_carry(x)."
                )

    def _check_size(self, argument: str, size: Any) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{type(self).__name__}: `{argument}` must be an int of at least 1; got {size!r}.")

    def _floating(self, argument: str, dtype: Any) -> Any:
        if dtype is None and argument != "param_dtype":
            return None
        try:
            floating = dtype is not None and jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
        except TypeError:
            floating = False
        if not floating:
            raise TypeError(
                f"{type(self).__name__}: `{argument}` must be a floating dtype, such as jnp.bfloat16; got {dtype!r}."
            )
        return jnp.dtype(dtype).type


def project(x: Float[Array, "*batch rows"], kernel: Float[Array, "rows columns"]) -> Float[Array, "*batch columns"]:
    """`x @ kernel` in at least float32, so that a 16-bit sum of products and bias is rounded once, at its end."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.matmul(x, kernel, preferred_element_type=wide)


def describe_shape(shape: tuple[Any, ...]) -> str:
    """A shape as documentation writes it: `(N, 4)`, `(4,)`."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _has_shape(leaf: Any, shape: tuple[Any, ...]) -> bool:
    actual = getattr(leaf, "shape", None)
    return actual == shape or (shape[0] == "D" and actual is not None and len(actual) == 2 and actual[1:] == shape[1:])


def _show_tree(tree: Any) -> str:
    return str(jax.tree.map(describe, tree)).replace("'", "")


def _show(value: Any) -> str:
    return getattr(value, "__name__", repr(value))
